"""Which kernels a build compiles ahead of time: none without a GPU compiler, and it says so and its
library carries the kernels' source; those of the machine's GPUs; families of AMD targets.

    test_configure.py GENERATOR
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_COMPILERS = ["-DMEMOPT_NVCC=", "-DMEMOPT_HIPCC=", "-DMEMOPT_CLANG=", "-DMEMOPT_ROCM_CLANG="]
# Prints the number of images and whether the source holds the kernels, for both vendors.
PROGRAM = """#include "kernels/core/gpu_images.h"
#include <stdio.h>
#include <string.h>
static void tell(const mo_images *images)
{
    printf("%u %d\\n", images->count, images->source != 0 && images->source_bytes > 10000 &&
           strstr(images->source, "MO_STEP_KERNEL(mo_step_adamw8,") != 0);
}
int main(void)
{
    tell(&mo_cuda_images);
    tell(&mo_hip_images);
    return 0;
}
"""


# A compiler that knows the targets of its name's list: a stand-in for nvcc and clang.
COMPILER = """#!/bin/sh
case " $* " in
*" -dumpversion "*) echo 19.1.7; exit 0 ;;
esac
for word; do
    case $word in
    --offload-arch=*|arch=*)
        target=${word#*arch=}
        case " KNOWN " in *" ${target%%,*} "*) ;; *) exit 1 ;; esac ;;
    esac
done
"""


def run(*command, status=0, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if (done.returncode == 0) != (status == 0):
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class Configure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name) / "build"

    def configure(self, *options, status=0, **more):
        return run("cmake", "-S", ROOT, "-B", self.build, "-G", GENERATOR, "-DMEMOPT_BUILD_TESTS=OFF",
                   "-DMEMOPT_BUILD_EXAMPLES=OFF", *NO_COMPILERS, *options, status=status, **more)

    def file(self, name, text=""):
        path = self.build.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def compiler(self, name, known):
        return self.file(name, COMPILER.replace("KNOWN", known))

    def native(self, *options, nvcc="compute_86 compute_89", smi="", clang=True):
        """What is said on a machine whose files are those that the test has made."""
        self.file("bin/nvidia-smi", smi)
        known = "gfx90a gfx1030 gfx11-generic gfx1100 gfx1101"
        compilers = [f"-DMEMOPT_NVCC={self.compiler(nvcc.replace(' ', '_'), nvcc) if nvcc else ''}",
                     f"-DMEMOPT_CLANG={self.compiler('clang', known) if clang else ''}"]
        words = self.configure(f"-Dmemopt_native_root={self.build.parent}", *compilers, *options,
                               env={**os.environ, "PATH": f"{self.build.parent}/bin:{os.environ['PATH']}"})
        return [line.split(": ", 1)[1].split(" by ")[0].rstrip(",")
                for line in words.split("\n") if "GPU kernels, " in line]

    def test_no_gpu(self):
        for vendor in self.native(smi="exit 1"):
            self.assertIn("this machine has no such device", vendor)

    def test_gpus_of_the_machine(self):
        self.file("dev/nvidiactl")
        nodes = "sys/class/kfd/kfd/topology/nodes"
        for node, version in enumerate((0, 90010, 110001, 90010)):
            self.file(f"{nodes}/{node}/properties", f"cpu_cores_count 0\ngfx_target_version {version}\n")
        smi = "#!/bin/sh\necho 8.9\necho 8.6\necho 8.9\n"
        self.assertEqual(self.native(smi=smi), ["sm 86 89", "gfx90a gfx1101"])
        # In the same folder: another nvcc, without one, a driver that does not tell, a given list.
        self.assertEqual(self.native(smi=smi, nvcc="compute_80"), ["PTX", "gfx90a gfx1101"])
        self.assertEqual(self.native(smi=smi, nvcc=None), ["PTX", "gfx90a gfx1101"])
        self.assertEqual(self.native(smi="#!/bin/sh\nexit 2\n"), ["PTX", "gfx90a gfx1101"])
        self.assertEqual(self.native("-DMEMOPT_HIP_TARGETS=gfx1030", smi=smi), ["sm 86 89", "gfx1030"])

    def test_families(self):
        """A generic target in place of its members, and these where the compiler lacks it."""
        all_targets = "-DMEMOPT_GPU_IMAGES=ALL"
        self.assertEqual(self.native(all_targets, nvcc=None),
                         ["PTX", "gfx90a gfx1030 gfx11-generic"])

    def test_on_needs_a_device(self):
        words = self.configure("-DMEMOPT_HIP=ON", f"-Dmemopt_native_root={self.build}", status=1)
        self.assertIn("MEMOPT_HIP=ON asks for images, and this machine has no such device",
                      " ".join(words.split()))

    def build_images(self, status=0):
        target = "gpu/images.c" if GENERATOR == "Ninja" else "memopt_objects"
        return run("cmake", "--build", self.build, "--target", target, status=status)

    def images(self):
        images = self.build / "gpu/images.c"
        self.build_images()
        program = self.build / "program"
        (self.build / "program.c").write_text(PROGRAM)
        run("cc", "-I", ROOT, self.build / "program.c", images, "-o", program)
        return run(program).split("\n")[:2]

    def test_images_of_another_build(self):
        """They are taken if they are of the same source, and else refused."""
        self.configure("-DMEMOPT_GPU_IMAGES=NONE")
        self.images()
        folder = self.file("other/kernels.cu", (self.build / "gpu/kernels.cu").read_text()).parent
        for name in ("kernels.ptx", "gfx90a.hsaco", "gfx12-generic.hsaco"):
            self.file(f"other/{name}", name)
        words = self.configure(f"-DMEMOPT_GPU_IMAGES={folder}", "-DMEMOPT_CUDA=ON")
        self.assertEqual(words.count(f"those of {folder}"), 2)
        self.assertEqual(self.images(), ["1 1", "2 1"])
        text = (self.build / "gpu/images.c").read_text()
        for target in ("ptx75", "gfx90a", "gfx12-generic"):
            self.assertIn(f'{{"{target}", mo_blob_', text)
        self.file("other/kernels.cu", "older")
        self.assertIn("must be the same", self.build_images(status=1))

    def test_no_compiler(self):
        words = self.configure("-DMEMOPT_GPU_IMAGES=ALL")
        for vendor in ("CUDA", "HIP"):
            self.assertIn(f"GPU kernels, {vendor}: no compiler found", words)
        self.assertEqual(self.images(), ["0 1", "0 1"])

    def test_off(self):
        words = self.configure("-DMEMOPT_CUDA=OFF", "-DMEMOPT_HIP=OFF")
        self.assertIn("GPU kernels, HIP: none (MEMOPT_HIP=OFF)", words)
        self.assertEqual(self.images(), ["0 0", "0 0"])
        self.assertNotIn("incbin", (self.build / "gpu/images.c").read_text())  # nor the source

    def test_on_needs_a_compiler(self):
        for vendor, other in (("CUDA", "HIP"), ("HIP", "CUDA")):
            words = " ".join(self.configure(f"-DMEMOPT_{vendor}=ON", f"-DMEMOPT_{other}=AUTO",
                                            "-DMEMOPT_GPU_IMAGES=ALL", status=1).split())
            self.assertIn(f"MEMOPT_{vendor}=ON needs", words)

    def test_targets_need_a_compiler(self):
        for vendor, target in (("CUDA", "80;90"), ("HIP", "gfx90a")):
            words = " ".join(self.configure(f"-DMEMOPT_{vendor}_TARGETS={target}",
                                            status=1).split())
            self.assertIn(f'MEMOPT_{vendor}_TARGETS="{target}" needs', words)
            self.configure(f"-DMEMOPT_{vendor}_TARGETS=")


GENERATOR = sys.argv[1]
unittest.main(argv=sys.argv[:1], verbosity=2)
