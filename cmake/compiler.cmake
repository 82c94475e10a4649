# C++20, warnings as errors in our code, ccache, and the `asan` preset's sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  # Paths relative to the repository: another build folder or another clone hits the same cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CCACHE}")
endif()

add_library(strict_warnings INTERFACE)
# GCC 12 sees overlapping copies in "text" + string (its bug 105329): -Wrestrict is off.
target_compile_options(strict_warnings INTERFACE -Wall -Wextra -Wshadow -Wno-restrict -Werror)

option(ONNX_TRAIN_SANITIZE "Address and undefined-behaviour sanitizers" OFF)
if(ONNX_TRAIN_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
