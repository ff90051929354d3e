"""A build without any GPU compiler: it configures, says so, and its library carries the kernels'
source and no image.

    test_configure.py GENERATOR
"""
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
           strstr(images->source, "MO_STEP_KERNEL(mo_optim_step,") != 0);
}
int main(void)
{
    tell(&mo_cuda_images);
    tell(&mo_hip_images);
    return 0;
}
"""


def run(*command, status=0):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if (done.returncode == 0) != (status == 0):
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class Configure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name) / "build"

    def configure(self, *options, status=0):
        return run("cmake", "-S", ROOT, "-B", self.build, "-G", GENERATOR, "-DMEMOPT_BUILD_TESTS=OFF",
                   "-DMEMOPT_BUILD_EXAMPLES=OFF", *NO_COMPILERS, *options, status=status)

    def images(self):
        images = self.build / "gpu/images.c"
        if GENERATOR == "Ninja":
            run("cmake", "--build", self.build, "--target", "gpu/images.c")
        else:
            run("cmake", "--build", self.build, "--target", "memopt_objects")
        program = self.build / "program"
        (self.build / "program.c").write_text(PROGRAM)
        run("cc", "-I", ROOT, self.build / "program.c", images, "-o", program)
        return run(program).split("\n")[:2]

    def test_no_compiler(self):
        words = self.configure()
        for vendor in ("CUDA", "HIP"):
            self.assertIn(f"GPU kernels, {vendor}: no compiler found", words)
        self.assertEqual(self.images(), ["0 1", "0 1"])

    def test_off(self):
        words = self.configure("-DMEMOPT_CUDA=OFF", "-DMEMOPT_HIP=OFF")
        self.assertIn("GPU kernels, HIP: none (MEMOPT_HIP=OFF)", words)
        self.assertEqual(self.images(), ["0 0", "0 0"])

    def test_on_needs_a_compiler(self):
        for vendor, other in (("CUDA", "HIP"), ("HIP", "CUDA")):
            words = " ".join(self.configure(f"-DMEMOPT_{vendor}=ON", f"-DMEMOPT_{other}=AUTO",
                                            status=1).split())
            self.assertIn(f"MEMOPT_{vendor}=ON needs", words)

    def test_targets_need_a_compiler(self):
        for vendor, target in (("CUDA", "80;90"), ("HIP", "gfx90a")):
            words = " ".join(self.configure(f"-DMEMOPT_{vendor}_TARGETS={target}",
                                            status=1).split())
            self.assertIn(f'MEMOPT_{vendor}_TARGETS="{target}" needs', words)
            self.configure(f"-DMEMOPT_{vendor}_TARGETS=")


GENERATOR = sys.argv[1]
unittest.main(argv=sys.argv[:1], verbosity=2)
