"""layers.py finds what it is there to find, and nothing else."""
import pathlib
import tempfile
import unittest

import layers

TREE = {
    "include/memopt/base.h": "#include <stdint.h>\n",
    "include/memopt/device.h": "#include <memopt/base.h>\n",
    "include/memopt/allocator.h": "#include <memopt/device.h>\n",
    "include/memopt/optim.h": "#include <memopt/allocator.h>\n",
    "kernels/core/kernel_launch.h": "#include <stdint.h>\n",
    "kernels/core/x.c": '#include "kernels/core/kernel_launch.h"\n#include "kernel_launch.h"\n',
    "lib/base/memory.c": '#include "base/error.h"\nvoid *f(void) { return malloc(1); }\n',
    "lib/base/error.h": '#include "memopt/base.h"\n',
    "lib/base/log.c": 'void f(void) { fprintf(stderr, "x"); }\n',
    "lib/device/device.h": '#include "kernels/core/kernel_launch.h"\n#include "base/error.h"\n',
    "lib/device/cpu/cpu.h": '#include "device/device.h"\n',
    "lib/device/cpu/stream.c": '#include "cpu.h"\n#include "device/device.h"\n',
    "lib/allocator/pool.h": '#include "device/device.h"\n#include <memopt/allocator.h>\n',
    "lib/allocator/pool.c": '#include "pool.h"\n',
    "lib/optim/step.c": '#include "memopt/allocator.h"\n#include "kernels/core/kernel_launch.h"\n',
}


def found_in(changes):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in {**TREE, **changes}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return [*layers.problems(root), *layers.circles(root), *layers.python_problems(root),
                *layers.names_of_others(root)]


class Layers(unittest.TestCase):
    def expect(self, name, text, part):
        found = found_in({name: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])
        self.assertTrue(found[0].startswith(f"{name}:{text.count(chr(10))}: "), found[0])

    def test_a_good_tree(self):
        self.assertEqual(found_in({}), [])

    def test_a_lock_that_logging_does_not_know(self):
        self.expect("lib/optim/x.c", "void f(void *m) { pthread_mutex_lock(m); }\n", "lock.h")

    def test_python_modules_import_each_other(self):
        package = "bindings/python/memopt"
        below = {f"{package}/a.py": "import sys\n", f"{package}/cli/__init__.py": "from ..a import b\n"}
        self.assertEqual(found_in(below), [])
        for text in ("from .cli import x\n", "def f():\n    from . import cli\n"):
            found = found_in({**below, f"{package}/a.py": text})
            self.assertEqual(len(found), 3, found)  # the order, and the circle seen from both sides
            self.assertIn("cli is not below", found[0])
            self.assertIn("leads back here", found[1])

    def test_the_library_knows_what_is_built_on_it(self):
        package = "bindings/python/memopt"
        self.expect(f"{package}/a.py", "from .tools import x\n", "which is not there")
        self.expect("tests/x.cmake", "add(extras/tools)\n", "built on the library")
        self.expect("lib/optim/x.c", "/* as libmemopt-plan does */\n", "built on the library")

    def test_public_header_includes_the_inside(self):
        self.expect("include/memopt/x.h", '#include "base/error.h"\n', "public headers only")

    def test_base_includes_what_is_above(self):
        self.expect("lib/base/x.c", '#include "device/device.h"\n', "below lib/device")
        self.expect("lib/base/x.c", "#include <memopt/device.h>\n", "below what")
        self.expect("lib/base/x.c", '#include "kernels/core/kernel_launch.h"\n', "below the kernels")

    def test_device_includes_a_primitive(self):
        self.expect("lib/device/x.c", '#include "allocator/pool.h"\n', "below lib/allocator")
        self.expect("lib/device/x.c", '#include "memopt/allocator.h"\n', "below what")

    def test_primitive_includes_a_back_end(self):
        self.expect("lib/optim/x.c", '\n#include "device/cpu/cpu.h"\n', "only lib/device/device.h")

    def test_primitive_includes_a_primitive(self):
        self.expect("lib/optim/x.c", '#include "allocator/pool.h"\n', "public headers only")
        self.expect("lib/optim/x.c", '#include "../allocator/pool.h"\n', "public headers only")

    def test_kernel_includes_the_library(self):
        self.expect("kernels/x.c", '#include "base/error.h"\n', "only themselves")
        self.expect("kernels/x.c", '#include "memopt/base.h"\n', "only themselves")

    def test_missing_header(self):
        self.expect("lib/optim/x.c", '#include "optim/nothing.h"\n', "not a file")

    def test_allocation_elsewhere(self):
        for call in ("malloc(1)", "free (p)", "strdup(s)", "realloc(p, 1)"):
            self.expect("lib/optim/x.c", f"/* x */\nvoid f(void) {{ {call}; }}\n", "memory.h only")

    def test_allocation_that_is_none(self):
        text = (
            "/* malloc(1) */ // free(p)\n"
            'const char *s = "malloc(1)";\n'
            "void f(void) { mo_malloc(1); ops->free(p); ops.free(p); mem_free(p); }\n"
        )
        self.assertEqual(found_in({"lib/optim/x.c": text}), [])

    def test_ending_the_program(self):
        for call in ("abort()", "exit(1)", 'printf("x")', 'fprintf(stderr, "x")', 'dprintf(2, "x")', "assert(0)"):
            self.expect("lib/device/x.c", f"void f(void) {{ {call}; }}\n", "neither prints nor ends")
        self.assertEqual(
            found_in({"lib/device/x.c": "_Static_assert(1, \"\"); void f(void) { snprintf(t); }\n"}), []
        )

    def test_back_end_condition_in_a_primitive(self):
        self.expect("lib/optim/x.c", "\n#ifdef __CUDACC__\n", "no #if of a back end")

    def test_files_that_use_each_other(self):
        change = {
            "lib/optim/x.c": "int mo_x(int (*f)(int), int n)\n{\n    return mo_y[n];\n}\n",
            "lib/cast/y.c": "const int mo_y[2] = {0, 1};\nint f(void) { return mo_z(); }\n",
            "lib/cast/z.c": "int mo_z(void) { return 0; }\n",
        }
        self.assertEqual(found_in(change), [])
        change["lib/cast/z.c"] = "int mo_z(void)\n{\n    return mo_x(0, 1); /* mo_y */\n}\n"
        found = found_in(change)
        self.assertEqual(len(found), 1, found)
        self.assertIn("lib/cast/y -> lib/cast/z -> lib/optim/x -> lib/cast/y", found[0])

    def test_a_header_of_the_same_name(self):
        change = {
            "lib/cast/x.h": "static inline int mo_size(int n)\n{\n    return n;\n}\n",
            "lib/cast/y.c": "int mo_y(void) { return mo_size(1); }\n",
        }
        self.assertEqual(found_in(change), [])
        found = found_in({**change, "lib/cast/x.c": "int mo_x(void) { return mo_y(); }\n"})
        self.assertEqual(len(found), 1, found)
        self.assertIn("lib/cast/x -> lib/cast/y -> lib/cast/x", found[0])

    def test_what_is_below_in_the_allocator(self):
        above = {"lib/allocator/memory/m.c": "int mo_m(void) { return 0; }\n",
                 "lib/allocator/memory/m.h": "int mo_m(void);\n"}
        for text in ('#include "allocator/memory/m.h"\n', "int f(void) { return mo_m(); }\n"):
            found = found_in({**above, "lib/allocator/blocks/b.c": text})
            self.assertEqual(len(found), 1, found)
            self.assertIn("lib/allocator/blocks/ is below it", found[0])


if __name__ == "__main__":
    unittest.main()
