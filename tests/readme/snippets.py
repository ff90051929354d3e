"""The blocks of C in the guide compile.

    snippets.py ROOT CC [PROJECT]

The pages are docs/guide, or those of a PROJECT that is built on the library. One that stands in a program of
its examples as it is (but for white space) is compiled there. Every
other is compiled here, with the declarations that NAMES has for what a reader's program would have
around it.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```c\n(.*?)^```$", re.M | re.S)

#: What a page's program has at file scope, and what is there where its statements stand.
NAMES = {
    "backends.md": ("", ""),
    "cast.md": (
        "memopt_tensor tensor(memopt_dtype dtype);",
        "memopt_device *device;",
    ),
    "checkpoint.md": (
        "enum { WIDTH = 64, LAYERS = 4 };"
        "typedef struct layer { memopt_region *region; float *keep; } layer;"
        "void run(uint32_t operation, uint64_t stage);",
        "layer *layers, *l; memopt_region *region; memopt_stream stream;"
        "const memopt_chain_stage *stages; uint64_t count, batch_bytes;"
        "const memopt_fit_event *events; uint64_t event_count; uint32_t *chosen;",
    ),
    "command-replay.md": (
        "",
        "memopt_allocator *allocator; memopt_trace *trace; int32_t file;"
        "memopt_replay_options options;"
        "memopt_replay_result result; uint64_t smallest;",
    ),
    "device.md": (
        "void my_kernel(float *tensor, memopt_stream stream);",
        "memopt_device *device; memopt_stream stream; uint64_t bytes; float *tensor, *loss;",
    ),
    "monitor.md": ("", "memopt_allocator *allocator;"),
    "offload.md": (
        "enum { BYTES = 64 };",
        "memopt_offloader *offloader; void *activation; memopt_stream stream;"
        "memopt_ticket *tickets, ticket; int i; void *host; FILE *file;"
        "memopt_device *device; memopt_streamer *streamer; memopt_stream_part *parts; void **pointers;"
        "uint64_t budget; uint32_t count, layer;",
    ),
    "optimizer.md": (
        "",
        "memopt_allocator *allocator; memopt_optimizer *optimizer; uint32_t number; uint64_t index;"
        "memopt_tensor weights, gradient, *parameters, *updates, *gradients; memopt_device *device;"
        "uint64_t count, bytes; double *squares; void *scratch; memopt_stream stream;",
    ),
}
PROGRAM = """#include <memopt/memopt.h>
%s#include <stdio.h>
#define TRY(call) do { memopt_status s_ = (call); if (s_ != MEMOPT_OK) return s_; } while (0)
#define CHECK(call) TRY(call)
%s
%s
"""


def squeezed(text):
    """Without a difference in white space."""
    return " ".join(text.split())


def program(page, block, includes):
    """A block as a whole file: a function of its own, or statements in one."""
    outside, inside = NAMES[page]
    if not re.match(r"static |\w+ \w+\(.*\)\n{", block):
        # What is only declared is not used as if it had a value.
        given = " ".join("extern " + each + ";" for each in inside.split(";") if each)
        outside += "\n" + given
        head = "memopt_status here(void)"
        block = "%s;\n%s\n{\n%s\nreturn MEMOPT_OK;\n}" % (head, head, block)
    return PROGRAM % (includes, outside, block)


def check(root, compiler, project):
    """What is wrong, and how many blocks there are."""
    programs = (project or root).glob("examples/**/*.c")
    folders = [root / "include"] + ([project / "include"] if project else [])
    headers = [path.relative_to(project / "include") for path in project.glob("include/**/*.h")] if project else []
    includes = "".join("#include <%s>\n" % header for header in headers)
    examples = [squeezed(path.read_text(encoding="utf-8")) for path in programs]
    wrong, count = [], 0
    for page in sorted(project.glob("docs/*.md") if project else root.glob("docs/guide/*.md")):
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            count += 1
            if any(squeezed(block) in example for example in examples):
                continue
            if page.name not in NAMES:
                what = "in no example, and nothing is known around it"
                wrong.append("%s: %s:\n%s" % (page.name, what, block))
                continue
            said = compiled(folders, compiler, program(page.name, block, includes))
            if said:
                wrong.append("%s:\n%s\n%s" % (page.name, block, said))
    return wrong, count


def compiled(folders, compiler, text):
    """What the compiler says of a file; empty: it is fine."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "snippet.c"
        source.write_text(text, encoding="utf-8")
        flags = ["-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused"]
        done = subprocess.run(
            [compiler, *flags, *("-I%s" % folder for folder in folders), str(source)],
            stderr=subprocess.PIPE, universal_newlines=True, check=False,
        )
        return "" if done.returncode == 0 else done.stderr


if __name__ == "__main__":
    wrong, count = check(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]) if sys.argv[3:] else None)
    print("\n".join(wrong) or "%d blocks of C in the guide compile" % count)
    sys.exit(bool(wrong) or not count)
