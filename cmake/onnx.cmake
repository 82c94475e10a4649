# How ONNX's library is built for this project, as CMake's cache of that build: scripts/bootstrap and the recipes in packaging/ run
#   cmake -C cmake/onnx.cmake -S onnx-VERSION -B BUILD -DCMAKE_INSTALL_PREFIX=FOLDER
# The namespace is our own: other copies of ONNX live in the same process when the Python package is loaded.
set(ONNX_NAMESPACE onnx_train_onnx CACHE STRING "")
set(ONNX_ML ON CACHE BOOL "")
set(ONNX_USE_UNITY_BUILD ON CACHE BOOL "")
set(ONNX_USE_PROTOBUF_SHARED_LIBS ON CACHE BOOL "")
# It goes into libonnx_train.so, and reads files: no part of it computes.
set(BUILD_SHARED_LIBS OFF CACHE BOOL "")
set(CMAKE_BUILD_TYPE Release CACHE STRING "")
# Each operator's schema says in which file it is: by a name that is the same wherever it is built.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG -w -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=" CACHE STRING "")
set(CMAKE_CXX_STANDARD 20 CACHE STRING "")
set(CMAKE_CXX_VISIBILITY_PRESET hidden CACHE STRING "")
set(CMAKE_POSITION_INDEPENDENT_CODE ON CACHE BOOL "")
