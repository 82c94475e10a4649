# Everything that is not ours; docs/deployment.md gives the reason for each.
set(CMAKE_FIND_PACKAGE_PREFER_CONFIG OFF)
find_package(Protobuf QUIET CONFIG)  # from version 22 on it has one, which names Abseil, too
if(NOT Protobuf_FOUND)
  set(Protobuf_USE_STATIC_LIBS OFF)
  find_package(Protobuf REQUIRED MODULE)
endif()
find_package(ONNX CONFIG REQUIRED)       # scripts/bootstrap builds it into .deps/onnx
get_target_property(onnx_definitions ONNX::onnx INTERFACE_COMPILE_DEFINITIONS)
get_target_property(onnx_type ONNX::onnx TYPE)
if(NOT "${onnx_definitions}" MATCHES "ONNX_NAMESPACE=onnx_train_onnx" OR NOT onnx_type STREQUAL "STATIC_LIBRARY")
  message(FATAL_ERROR "ONNX in ${ONNX_DIR} is shared or has the namespace of everybody's ONNX, and two copies in one process would mix: build it "
    "with `cmake -C ${PROJECT_SOURCE_DIR}/cmake/onnx.cmake`, and put where it is installed into CMAKE_PREFIX_PATH")
endif()
if(ONNX_TRAIN_ONEDNN)
  find_package(dnnl 3 CONFIG REQUIRED)   # a wheel in .deps/venv
endif()
if(NOT ONNX_TRAIN_FUZZ)  # clang compiles no loops of OpenMP
  find_package(OpenMP REQUIRED)
endif()
find_package(CLI11 CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(FlatBuffers CONFIG REQUIRED)  # headers
find_program(FLATC flatc REQUIRED)
find_package(ZLIB REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # its name since 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(mimalloc CONFIG REQUIRED)  # 2 or 3
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
add_system_library(pcre2 pcre2.h pcre2-8)
add_system_library(utf8proc utf8proc.h utf8proc)
if(NOT ONNX_TRAIN_MINIMAL)
  find_package(PNG REQUIRED)
  find_package(JPEG REQUIRED)
  add_system_library(webp webp/decode.h webp)
elseif(ONNX_TRAIN_TESTS)
  message(FATAL_ERROR "The tests are of pictures and reports, too: give -DONNX_TRAIN_TESTS=OFF with ONNX_TRAIN_MINIMAL")
endif()
