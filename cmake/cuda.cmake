# The CUDA toolkit, from the wheels that scripts/bootstrap --cuda installs or from an installation, as the targets
# CUDA::headers, CUDA::cublasLt and CUDA::cudnn, which is headers: the library is loaded where it is used. With
# ONNX_TRAIN_CUDA, the device module libonnx_train_cuda.so, which nvcc compiles. The headers are also what the tests need
# that run the kernels on the host.
option(ONNX_TRAIN_CUDA "The device module for NVIDIA GPUs, which needs nvcc" OFF)

file(GLOB cuda_wheels "${DEPS}/venv/lib/python3*/site-packages/nvidia/cu13")
find_path(CUDA_INCLUDE cuda_runtime.h HINTS ${cuda_wheels} /usr/local/cuda PATH_SUFFIXES include)
if(CUDA_INCLUDE)
  get_filename_component(cuda_root "${CUDA_INCLUDE}" DIRECTORY)
  find_library(CUDA_CUBLASLT NAMES libcublasLt.so.13 HINTS "${cuda_root}/lib" "${cuda_root}/lib64")
  get_filename_component(CUDA_LIBRARIES_FOLDER "${CUDA_CUBLASLT}" DIRECTORY)
  add_library(CUDA::headers INTERFACE IMPORTED)
  target_include_directories(CUDA::headers SYSTEM INTERFACE "${CUDA_INCLUDE}")
  add_library(CUDA::cublasLt SHARED IMPORTED)
  set_target_properties(CUDA::cublasLt PROPERTIES IMPORTED_LOCATION "${CUDA_CUBLASLT}"
    IMPORTED_SONAME libcublasLt.so.13)
  find_path(CUDNN_INCLUDE cudnn.h HINTS "${cuda_root}/../cudnn/include" "${cuda_root}/include")
  find_library(CUDNN_LIBRARY NAMES libcudnn.so.9 HINTS "${CUDNN_INCLUDE}/../lib" "${CUDNN_INCLUDE}/../lib64")
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS "${cuda_root}/../../include")
  if(NOT CUDNN_INCLUDE OR NOT CUDNN_LIBRARY OR NOT CUDNN_FRONTEND_INCLUDE)
    message(FATAL_ERROR "The CUDA toolkit in ${cuda_root} has no cuDNN 9 or no cudnn-frontend beside it: run scripts/bootstrap --cuda")
  endif()
  add_library(CUDA::cudnn INTERFACE IMPORTED)
  target_include_directories(CUDA::cudnn SYSTEM INTERFACE "${CUDNN_INCLUDE}" "${CUDNN_FRONTEND_INCLUDE}")
  get_filename_component(CUDNN_LIBRARIES_FOLDER "${CUDNN_LIBRARY}" DIRECTORY)
elseif(ONNX_TRAIN_CUDA)
  message(FATAL_ERROR "ONNX_TRAIN_CUDA needs the CUDA toolkit: run scripts/bootstrap --cuda")
endif()

# cudnn-frontend without its JSON. A source that includes it compiles in 14 s with -O0 and in 21 s with -O1; its code runs
# when plans are made. GCC refuses headers that were precompiled with another level of optimization.
set(cudnn_frontend_options COMPILE_OPTIONS "-O0" COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB
  SKIP_PRECOMPILE_HEADERS ON)
set(cudnn_frontend_sources kernels/cuda/attention/cudnn.cc kernels/cuda/convolution/cudnn.cc
    kernels/cuda/products/cudnn.cc)
list(TRANSFORM cudnn_frontend_sources PREPEND "${PROJECT_SOURCE_DIR}/")

file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cc kernels/cuda/*.cu kernels/cuda/*/*.cc kernels/cuda/*/*.cu)

# What generated kernels include, as strings in the program.
set(embedded_files kernels/cuda/fused/generated.h kernels/cuda/fused/standard.h kernels/cuda/support/gpu.h
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
  set_source_files_properties(${cudnn_frontend_sources} PROPERTIES ${cudnn_frontend_options})
  add_device_module(cuda kernels/cuda/module.cc)
  target_link_libraries(onnx_train_cuda PRIVATE cuda_kernels)
  set_target_properties(onnx_train_cuda PROPERTIES LINKER_LANGUAGE CUDA
    BUILD_RPATH "${CUDA_LIBRARIES_FOLDER};${CUDNN_LIBRARIES_FOLDER}")  # NVRTC is looked for beside cuBLASLt, too
  target_compile_options(cuda_kernels PRIVATE
    # 186: a formula for all numbers compares unsigned ones with zero, too.
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-Werror=all-warnings;-diag-suppress=186;-Xptxas=-warn-spills>")
  install(TARGETS onnx_train_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
