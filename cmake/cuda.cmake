# The CUDA toolkit, from the wheels that scripts/bootstrap --cuda installs or from an installation, as the targets
# CUDA::headers, CUDA::runtime (static) and CUDA::cublasLt. With ONNX_TRAIN_CUDA, the device module
# libonnx_train_cuda.so, which nvcc compiles. The headers are also what the tests need that run the kernels on the host.
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
elseif(ONNX_TRAIN_CUDA)
  message(FATAL_ERROR "ONNX_TRAIN_CUDA needs the CUDA toolkit: run scripts/bootstrap --cuda")
endif()

file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cc kernels/cuda/*.cu kernels/cuda/*/*.cc kernels/cuda/*/*.cu)

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
  add_device_module(cuda ${cuda_sources})
  target_link_libraries(onnx_train_cuda PRIVATE CUDA::headers CUDA::cublasLt)
  target_include_directories(onnx_train_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(onnx_train_cuda PRIVATE
    # 186: a formula for all numbers compares unsigned ones with zero, too.
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-Werror=all-warnings;-diag-suppress=186;-Xptxas=-warn-spills>")
  install(TARGETS onnx_train_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
