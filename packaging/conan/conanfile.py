import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

CLONE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


class LibmemoptConan(ConanFile):
    name = "libmemopt"
    description = "Memory savers for training programs: allocator, checkpointing, offload, 8-bit optimizers"
    license = "MIT"
    topics = ("deep-learning", "memory", "allocator", "cuda", "hip")
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    # Kernels for GPUs that are compiled now; others are compiled on the machine with the GPU.
    options = {"gpu_images": ["NATIVE", "ALL", "NONE"]}
    default_options = {"gpu_images": "NONE"}

    def set_version(self):
        text = load(self, os.path.join(CLONE, "CMakeLists.txt"))
        self.version = re.search(r"project\(memopt VERSION ([\d.]+)", text)[1]

    def export_sources(self):
        for what in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "lib/*", "kernels/*", "pkgconfig/*"):
            copy(self, what, CLONE, self.export_sources_folder)

    def configure(self):
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("libmemopt runs on Linux only")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["MEMOPT_BUILD_TESTS"] = False
        toolchain.cache_variables["MEMOPT_BUILD_EXAMPLES"] = False
        toolchain.cache_variables["MEMOPT_THREADS"] = "OWN"  # no other library is needed
        toolchain.cache_variables["MEMOPT_GPU_IMAGES"] = str(self.options.gpu_images)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["memopt"]
        # The library's own files for CMake and pkg-config are used.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "memopt")]
        self.cpp_info.set_property("pkg_config_name", "memopt")
