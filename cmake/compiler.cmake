# C++20, warnings as errors in our code, ccache, and the sanitizers of the presets `asan` and `tsan`.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# library/exports.map decides what libonnx_train.so shows: nothing else may come between a call and its definition.
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
add_compile_options(-fno-semantic-interposition)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# x86-64 has fused multiply-adds in the kernels' variants alone. Elsewhere the compiler would use them everywhere, and
# what passes compute of constants would depend on the machine that builds a model.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  add_compile_options(-ffp-contract=off)
  # GCC 12 knows the type of 16 bits on aarch64 by the name of ARM alone.
  include(CheckCXXSourceCompiles)
  check_cxx_source_compiles("_Float16 x; int main() {}" HAS_FLOAT16)
  if(NOT HAS_FLOAT16)
    add_compile_definitions(_Float16=__fp16)
  endif()
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/ccache")
endif()

# precompile(TARGET HEADER...): what nearly every source of the target includes is parsed once, the standard library and
# those headers. Sources still include what they use: scripts/lint compiles them without it.
function(precompile target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <array> <cmath> <cstring> <functional> <limits> <map> <memory>
    <numeric> <optional> <set> <string> <unordered_map> <unordered_set> <vector> ${ARGN})
  target_compile_options(${target} PRIVATE -fpch-preprocess)  # ccache wants it
endfunction()

# What computes nothing itself need not be optimized as far as kernels are, which takes longer to compile.
function(optimize_less target level)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}>)
endfunction()

option(ONNX_TRAIN_WERROR "Warnings are errors; OFF for compilers that this version was not tried with" ON)
add_library(strict_warnings INTERFACE)
# GCC 12 sees overlapping copies in "text" + string (its bug 105329), and copies out of bounds in the standard library's
# strings where that is precompiled, which it otherwise keeps to itself. The address sanitizer finds those that are there.
set(warnings -Wall -Wextra -Wshadow -Werror -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
if(NOT ONNX_TRAIN_WERROR)
  list(REMOVE_ITEM warnings -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(warnings -w)  # they are GCC's business
  add_compile_options(-frelaxed-template-template-args)  # as C++17 matches them
  add_compile_options(-ffunction-sections -fdata-sections)  # a fuzz target has what it calls
endif()
target_compile_options(strict_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")

set(ONNX_TRAIN_SANITIZE "" CACHE STRING "Sanitizers as -fsanitize names them: address,undefined or thread")
if(ONNX_TRAIN_SANITIZE)
  add_compile_options(-fsanitize=${ONNX_TRAIN_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ONNX_TRAIN_SANITIZE})
  target_compile_options(strict_warnings INTERFACE -Wno-maybe-uninitialized)  # GCC 12 finds it in its own <regex> then
endif()
