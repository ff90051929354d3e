"""The GPU kernels compile with every compiler that is there, and as they must: no spills, no stack,
no more shared memory than 48 KiB, nothing contracted, divisions and roots correctly rounded; and
the images of a build are those of its targets.

    test_build.py BUILD --nvcc P --clang P --hip-compiler P --cuda-targets 75,80 --hip-targets gfx90a
    test_build.py BUILD --hipcc P

An empty argument means: not found. Exit status 77 where no GPU compiler is.
"""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

from compilers import (CLANG_PTX_FLAGS, HIP_FLAGS, NVCC_FLAGS, Failure, assemble_kernels,
                       code_object_numbers, code_object_target, fatbin_targets, hip_kernels,
                       kernel_names, loose_arithmetic, nvcc_kernels, run)

OPTIONS = None

APPROXIMATE = ("mo_step_", "mo_quantize", "mo_blocks_quantize")
# Kernels that move aligned tensors in vectors of 16 bytes.
WRITTEN_BY_16 = ("mo_cast", "mo_scale", "mo_step_adamw8", "mo_dequantize8")
READ_BY_16 = ("mo_cast", "mo_scale", "mo_step_adamw8", "mo_quantize8", "mo_check", "mo_hash_granules")


class Kernels(unittest.TestCase):
    def setUp(self):
        self.build = pathlib.Path(OPTIONS.build) / "gpu"
        self.source = self.build / "kernels.cu"
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def need(self, program):
        if not program:
            self.skipTest("not found")
        return program

    def ptxas(self):
        beside = pathlib.Path(OPTIONS.nvcc or "/").resolve().parent / "ptxas"
        return self.need(str(beside) if beside.exists() else shutil.which("ptxas"))

    def check(self, kernels):
        self.assertEqual(set(kernels), kernel_names())
        for name, kernel in kernels.items():
            with self.subTest(name):
                self.assertEqual(kernel["spill"], 0)
                self.assertEqual(kernel["stack"], 0)
                self.assertLessEqual(kernel["shared"], 48 << 10)

    def check_ptx(self, text):
        """An instruction without a rounding may be contracted by ptxas. Approximations are in those
        kernels alone that correct them, or keep them where they do not matter."""
        bodies = {name: text.split(f".entry {name}(", 1)[1].split(".entry", 1)[0]
                  for name in kernel_names()}
        for name, body in bodies.items():
            if not name.startswith(APPROXIMATE):
                self.assertNotIn(".approx", body, name)
        self.assertEqual(loose_arithmetic(text), [])
        for needed in ("div.rn.f32", "sqrt.rn.f32", "fma.rn.f32", "div.rn.f64", "sqrt.rn.f64"):
            self.assertIn(needed, text)
        body = text.split(".entry mo_square_sum(", 1)[1].split(".entry", 1)[0]
        self.assertIn("mul.rn.f64", body)
        self.assertIn("add.rn.f64", body)
        self.assertNotIn("fma", body)
        for name, body in bodies.items():
            self.assertEqual(re.findall(r"\b(?:ld|st)(?:\.volatile)?(?:\.v[24])?\.[usbf]\d+.*", body), [],
                             f"{name}: generic addresses")
        for name in READ_BY_16:
            self.assertTrue(re.search(r"\bld\.global(\.cs)?\.v4", bodies[name]), name)
        for name in WRITTEN_BY_16:
            self.assertTrue(re.search(r"\bst\.global(\.cs)?\.v4", bodies[name]), name)

    def test_source_stands_alone(self):
        text = self.source.read_text()
        self.assertEqual(re.findall(r'#\s*include\s*(\S+)', text), ["<stdint.h>"])

    def test_nvcc(self):
        nvcc = self.need(OPTIONS.nvcc)
        for arch in sorted({80, 90} | set(OPTIONS.cuda_targets)):
            with self.subTest(arch=arch):
                self.check(nvcc_kernels(nvcc, self.source, arch, self.folder))
        ptx = self.folder / "nvcc.ptx"
        run(nvcc, *NVCC_FLAGS, "--ptx", "-arch=compute_75", self.source, "-o", ptx)
        self.check_ptx(ptx.read_text().replace(".global.nc", ".global"))

    def test_clang_ptx(self):
        ptx = self.folder / "clang.ptx"
        run(self.need(OPTIONS.clang), *CLANG_PTX_FLAGS, "-S", self.source, "-o", ptx)
        self.check_ptx(ptx.read_text())

    def test_clang_ptx_assembles(self):
        ptx = self.folder / "clang.ptx"
        run(self.need(OPTIONS.clang), *CLANG_PTX_FLAGS, "-S", self.source, "-o", ptx)
        for arch in (75, 90):
            self.check(assemble_kernels(self.ptxas(), ptx, arch, self.folder))

    def test_hip_memory(self):
        """Global memory is accessed as such, never through flat addresses, and by 16 bytes; nothing is
        contracted."""
        compiler = self.need(OPTIONS.hip_compiler)
        for target in self.hip_sample():
            self.check(hip_kernels(compiler, self.source, target, self.folder))
            text = (self.folder / f"kernels.{target}.s").read_text()
            body = text.split("\nmo_square_sum:", 1)[1].split("s_endpgm", 1)[0]
            self.assertIn("v_mul_f64", body)
            self.assertNotIn("v_fma_f64", body)
            for name in kernel_names():
                body = text.split(f"\n{name}:", 1)[1].split("\n.Lfunc_end", 1)[0]
                with self.subTest(name, target=target):
                    self.assertEqual(re.findall(r"\bflat_\w+.*", body), [])
                    if name in READ_BY_16:
                        self.assertTrue(re.search(r"global_load_(dwordx4|b128)", body))
                    if name in WRITTEN_BY_16:
                        self.assertTrue(re.search(r"global_store_(dwordx4|b128)", body))

    def test_hipcc(self):
        """What a ROCm brings along compiles them too; Debian's is 5.2, of clang 15."""
        for target in ("gfx906", "gfx1030"):
            with self.subTest(target):
                self.check(hip_kernels(self.need(OPTIONS.hipcc), self.source, target, self.folder))

    def hip_sample(self):
        """One target of each generation, those that the compiler knows."""
        empty = self.folder / "empty.cu"
        empty.write_text("")
        for target in ("gfx90a", "gfx1030", "gfx1100", "gfx1201"):
            try:
                run(OPTIONS.hip_compiler, *HIP_FLAGS, f"--offload-arch={target}", "-S", empty, "-o",
                    self.folder / "empty.s")
            except Failure:
                continue
            yield target

    def test_fatbin(self):
        targets = OPTIONS.cuda_targets
        if not targets:
            self.skipTest("no SASS in this build")
        expected = {("elf", t) for t in targets} | {("ptx", targets[0]), ("ptx", targets[-1])}
        self.assertEqual(set(fatbin_targets(self.build / "kernels.fatbin")), expected)
        if cuobjdump := shutil.which("cuobjdump"):
            listing = run(cuobjdump, "--list-elf", self.build / "kernels.fatbin")
            self.assertEqual({int(a) for a in re.findall(r"sm_(\d+)", listing)}, set(targets))

    def test_code_objects(self):
        if not OPTIONS.hip_targets:
            self.skipTest("no code objects in this build")
        for target in OPTIONS.hip_targets:
            path = self.build / f"{target}.hsaco"
            self.assertEqual(code_object_target(path), target)
            for key in (".private_segment_fixed_size", ".vgpr_spill_count", ".sgpr_spill_count"):
                with self.subTest(key, target=target):
                    self.assertEqual(code_object_numbers(path, key), [0] * len(kernel_names()))


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    for option in ("--nvcc", "--clang", "--hip-compiler", "--hipcc", "--cuda-targets",
                   "--hip-targets"):
        parser.add_argument(option, default="")
    OPTIONS = parser.parse_args()
    OPTIONS.cuda_targets = [int(t) for t in OPTIONS.cuda_targets.split(",") if t]
    OPTIONS.hip_targets = [t for t in OPTIONS.hip_targets.split(",") if t]
    if not (OPTIONS.nvcc or OPTIONS.clang or OPTIONS.hip_compiler or OPTIONS.hipcc):
        print("no GPU compiler found")
        sys.exit(77)
    names = ["Kernels.test_hipcc"] if OPTIONS.hipcc else []
    unittest.main(argv=sys.argv[:1] + names, verbosity=2)


main()
