# The CUDA toolkit as the targets CUDA::headers, CUDA::cublasLt and CUDA::cudnn, which is headers: the library is loaded
# where it is used. It comes from the wheels that scripts/bootstrap --cuda installs, or from CUDAToolkit_ROOT: a toolkit in
# /usr/local/cuda, say, may lack cuDNN. With ONNX_TRAIN_CUDA, the device module libonnx_train_cuda.so, which nvcc compiles.
# The tests, which run the kernels on the host, need the headers, too.
option(ONNX_TRAIN_CUDA "The device module for NVIDIA GPUs, which needs nvcc" OFF)
# NVIDIA's libraries that the tests need are those of the machine that builds.
set(tests_cuda ${ONNX_TRAIN_TESTS})
if(CMAKE_CROSSCOMPILING)
  set(tests_cuda OFF)
endif()
if(NOT ONNX_TRAIN_CUDA AND NOT tests_cuda)
  return()
endif()

set(cuda_root "${CUDAToolkit_ROOT}")
if(NOT cuda_root)
  file(GLOB cuda_root "${DEPS}/venv/lib/python3*/site-packages/nvidia/cu13")
endif()
# find_cuda(VARIABLE path|library NAME FOLDER...): found anew in every configuration, where the wheels may have come since.
function(find_cuda variable kind name)
  list(TRANSFORM ARGN PREPEND "${cuda_root}/")
  cmake_language(CALL find_${kind} ${variable} NAMES ${name} PATHS ${ARGN} NO_DEFAULT_PATH NO_CACHE)
  if(NOT ${variable})
    message(FATAL_ERROR "CUDA: no ${name} in '${cuda_root}' or beside it: run scripts/bootstrap --cuda (--tests for all that "
      "the tests need), or set CUDAToolkit_ROOT to a CUDA 13 toolkit that has cuDNN 9 and cudnn-frontend")
  endif()
  set(${variable} "${${variable}}" PARENT_SCOPE)
endfunction()
find_cuda(CUDA_INCLUDE path cuda_runtime.h include)
find_cuda(CUDA_CUBLASLT library libcublasLt.so.13 lib lib64)
find_cuda(CUDNN_INCLUDE path cudnn.h ../cudnn/include include)
find_cuda(CUDNN_LIBRARY library libcudnn.so.9 ../cudnn/lib lib lib64)
find_cuda(CUDNN_FRONTEND_INCLUDE path cudnn_frontend.h ../../include include)
find_cuda(NCCL_INCLUDE path nccl.h ../nccl/include include)
cmake_path(GET CUDA_CUBLASLT PARENT_PATH CUDA_LIBRARIES_FOLDER)
cmake_path(GET CUDNN_LIBRARY PARENT_PATH CUDNN_LIBRARIES_FOLDER)
add_library(CUDA::headers INTERFACE IMPORTED)
target_include_directories(CUDA::headers SYSTEM INTERFACE "${CUDA_INCLUDE}")
add_library(CUDA::cublasLt SHARED IMPORTED)
set_target_properties(CUDA::cublasLt PROPERTIES IMPORTED_LOCATION "${CUDA_CUBLASLT}" IMPORTED_SONAME libcublasLt.so.13)
add_library(CUDA::cudnn INTERFACE IMPORTED)
target_include_directories(CUDA::cudnn SYSTEM INTERFACE "${CUDNN_INCLUDE}" "${CUDNN_FRONTEND_INCLUDE}" "${NCCL_INCLUDE}")

# cudnn-frontend without its JSON. A source that includes it compiles in 14 s with -O0 and in 21 s with -O1; its code runs
# when plans are made. It is the host's alone, so the same objects serve the module and the tests on the host.
add_library(cudnn_graphs OBJECT kernels/cuda/attention/cudnn.cc kernels/cuda/convolution/cudnn.cc
  kernels/cuda/products/cudnn.cc)
target_link_libraries(cudnn_graphs PRIVATE $<COMPILE_ONLY:kernels> CUDA::headers CUDA::cudnn strict_warnings)
target_compile_options(cudnn_graphs PRIVATE -O0)
target_compile_definitions(cudnn_graphs PRIVATE CUDNN_FRONTEND_SKIP_JSON_LIB)

file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cc kernels/cuda/*.cu kernels/cuda/*/*.cc kernels/cuda/*/*.cu)
list(FILTER cuda_sources EXCLUDE REGEX "/(attention|convolution|products)/cudnn.cc$")

# What generated kernels include, as strings in the program.
set(embedded_files kernels/cuda/fused/generated.h kernels/cuda/fused/standard.h kernels/cuda/support/gpu.h kernels/cuda/support/pack.h
  kernels/cuda/support/row_threads.h kernels/cuda/support/threads.h kernels/cuda/support/warp.h
  kernels/cuda/support/wide.h kernels/math/activations.h kernels/math/binary.h kernels/math/convert.h
  kernels/math/host_device.h kernels/math/reducers.h kernels/math/unary.h kernels/math/vector_math.h
  kernels/math/wrapping.h kernels/math/float8.h kernels/math/float16.h kernels/cuda/fused/native_half.h onnx_passes/ir/half.h)
set(embedded_source "${PROJECT_BINARY_DIR}/embedded_files.cc")
list(JOIN embedded_files "," embedded_list)
set(embedded_paths ${embedded_files})
list(TRANSFORM embedded_paths PREPEND "${PROJECT_SOURCE_DIR}/")
add_custom_command(OUTPUT "${embedded_source}" DEPENDS ${embedded_paths} "${PROJECT_SOURCE_DIR}/cmake/embed.cmake"
  COMMAND "${CMAKE_COMMAND}" -D "OUTPUT=${embedded_source}" -D "SOURCES=${PROJECT_SOURCE_DIR}" -D "FILES=${embedded_list}"
  -P "${PROJECT_SOURCE_DIR}/cmake/embed.cmake" VERBATIM)
add_custom_target(embedded_files DEPENDS "${embedded_source}")

if(ONNX_TRAIN_CUDA)
  # The newest architecture also as PTX, for GPUs that come later.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real 100-virtual CACHE STRING "Compute capabilities")
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS "${cuda_root}/bin" NO_DEFAULT_PATH)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_STANDARD 20)
  # The wheels' libraries are in lib, where nvcc does not look.
  set(CMAKE_CUDA_FLAGS "-L${cuda_root}/lib -L${cuda_root}/lib64" CACHE STRING "Flags of nvcc")
  enable_language(CUDA)
  # Objects: the module is made of them, and so are the tests that run on a GPU (tests/CMakeLists.txt).
  set(cuda_objects ${cuda_sources} "${embedded_source}")
  list(FILTER cuda_objects EXCLUDE REGEX "/module.cc$")
  add_library(cuda_kernels OBJECT ${cuda_objects})
  target_link_libraries(cuda_kernels PUBLIC $<COMPILE_ONLY:kernels> CUDA::headers CUDA::cublasLt CUDA::cudnn xxhash
    ${CMAKE_DL_LIBS} PRIVATE strict_warnings)
  add_module(cuda kernels/cuda/module.cc)
  target_link_libraries(onnx_train_cuda PRIVATE cuda_kernels cudnn_graphs)
  set_target_properties(onnx_train_cuda PROPERTIES LINKER_LANGUAGE CUDA
    BUILD_RPATH "${CUDA_LIBRARIES_FOLDER};${CUDNN_LIBRARIES_FOLDER}")  # NVRTC is looked for beside cuBLASLt, too
  target_compile_options(cuda_kernels PRIVATE
    # 186: a formula for all numbers compares unsigned ones with zero, too.
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-Werror=all-warnings;-diag-suppress=186;-Xptxas=-warn-spills>")
  install_module(cuda)
endif()
