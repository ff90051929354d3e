# Built from the clone that it lies in: nix-build packaging/nix
{
  pkgs ? import <nixpkgs> { },
  gpuImages ? "NONE", # kernels that are compiled now: NATIVE, ALL or NONE
}:

let
  root = ../..;
  matched = builtins.match ".*project\\(memopt VERSION ([0-9.]+).*" (builtins.readFile (root + "/CMakeLists.txt"));
in
pkgs.stdenv.mkDerivation {
  pname = "libmemopt";
  version = builtins.head matched;

  src = builtins.path {
    path = root;
    name = "libmemopt-source";
    filter = path: type: !(builtins.elem (baseNameOf path) [ ".git" ".venv" "build" ]);
  };

  nativeBuildInputs = [
    pkgs.cmake
    pkgs.ninja
  ];

  cmakeFlags = [
    "-DMEMOPT_BUILD_TESTS=OFF"
    "-DMEMOPT_BUILD_EXAMPLES=OFF"
    "-DMEMOPT_THREADS=OWN"
    "-DMEMOPT_GPU_IMAGES=${gpuImages}"
  ];

  meta = {
    description = "Memory savers for training programs";
    license = pkgs.lib.licenses.mit;
    platforms = pkgs.lib.platforms.linux;
  };
}
