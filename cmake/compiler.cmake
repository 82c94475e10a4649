# C++20, warnings as errors in our code, ccache, and the sanitizers of the presets `asan` and `tsan`.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# library/exports.map decides what libonnx_train.so shows: nothing else may come between a call and its definition.
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
add_compile_options(-fno-semantic-interposition)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  # Paths relative to the repository: another build folder or another clone hits the same cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CCACHE}")
endif()

add_library(strict_warnings INTERFACE)
# GCC 12 sees overlapping copies in "text" + string (its bug 105329): -Wrestrict is off.
target_compile_options(strict_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wno-restrict;-Werror>")

set(ONNX_TRAIN_SANITIZE "" CACHE STRING "Sanitizers as -fsanitize names them: address,undefined or thread")
if(ONNX_TRAIN_SANITIZE)
  add_compile_options(-fsanitize=${ONNX_TRAIN_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ONNX_TRAIN_SANITIZE})
  target_compile_options(strict_warnings INTERFACE -Wno-maybe-uninitialized)  # GCC 12 finds it in its own <regex> then
endif()
