"""366M parameters on a T4 of 15 GB, scaled down: what each setting of the guide saves."""

from typing import List, Tuple

import memopt
from memopt.sizes import format_size
from recipe import measuring
from recipe.running import Recipe

#: The guide's PYTORCH_CUDA_ALLOC_CONF.
GUIDE = "expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:128"
SCALE = 64


def reserved(recipe: Recipe, settings: str) -> Tuple[int, int]:
    """The step's tensors, `SCALE` times as large, in our allocator with these settings: the most
    bytes that were handed out and that were reserved for them."""
    trainer = recipe.trainer(recipe.steps[0])
    trainer.step()
    account = measuring.record(trainer)
    blocks = {}
    with memopt.Device("cpu", capacity="15GiB") as device:
        with memopt.Allocator(device, settings) as allocator:
            for event in account.events:
                number = abs(event) - 1
                size = account.tensors[number].bytes * SCALE
                if event > 0 and size:
                    blocks[number] = allocator.alloc(size)
                elif size:
                    allocator.free(blocks.pop(number))
            stats = allocator.stats()
            for block in blocks.values():
                allocator.free(block)
    return stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]


def extras(recipe: Recipe) -> Tuple[List[str], List[Tuple[str, bool]]]:
    """The allocator's settings, on the tensors of a real step."""
    lines, lost = ["Reserved for the first step's tensors, %d times as large" % SCALE], []
    for settings in ("", "expandable_segments:True", GUIDE):
        used, held = reserved(recipe, settings)
        lost.append(held - used)
        sizes = (format_size(held), format_size(used))
        lines.append("  %9s of %s: %s" % (*sizes, settings or "classic"))
    return lines, [("expandable segments lose less than classic ones", max(lost[1:]) < lost[0])]
