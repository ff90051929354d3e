# Copyright (c) 2026 The libmemopt authors
#
# SPDX-License-Identifier: MIT

from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Libmemopt(CMakePackage):
    """Memory savers for training programs: a caching allocator, activation checkpointing, offload, optimizers
    with states of 8 bits and casts, on CPUs and on GPUs by CUDA or HIP."""

    # The clone that the recipe lies in.
    git = Path(__file__).resolve().parents[4].as_uri()

    license("MIT")

    version("main", branch="main")

    variant(
        "gpu_images",
        default="none",
        values=("none", "native", "all"),
        description="GPU kernels that are compiled now; others are compiled on the machine with the GPU",
    )

    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")

    conflicts("platform=darwin")
    conflicts("platform=windows")

    def cmake_args(self):
        return [
            self.define("MEMOPT_BUILD_TESTS", False),
            self.define("MEMOPT_BUILD_EXAMPLES", False),
            self.define("MEMOPT_THREADS", "OWN"),
            self.define("MEMOPT_GPU_IMAGES", self.spec.variants["gpu_images"].value.upper()),
        ]
