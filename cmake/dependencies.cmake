# Everything that is not ours; README.md gives the reason for each.
set(CMAKE_FIND_PACKAGE_PREFER_CONFIG OFF)
set(Protobuf_USE_STATIC_LIBS OFF)
find_package(Protobuf REQUIRED)
find_package(ONNX CONFIG REQUIRED)       # scripts/bootstrap builds it into .deps/onnx
find_package(dnnl 3 CONFIG REQUIRED)     # a wheel in .deps/venv
find_package(OpenMP REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED)
find_package(mimalloc 2 CONFIG REQUIRED)
if(ONNX_TRAIN_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

function(add_system_library target header library)
  find_path(${target}_include ${header} REQUIRED)
  find_library(${target}_library ${library} REQUIRED)
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE "${${target}_include}")
  target_link_libraries(${target} INTERFACE "${${target}_library}")
endfunction()

add_system_library(xxhash xxhash.h xxhash)
add_system_library(openblas cblas.h openblas)
add_system_library(webp webp/decode.h webp)
