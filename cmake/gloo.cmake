# libonnx_train_gloo.so, which carries what ranks exchange over Gloo (docs/distributed.md), where CMake finds one: Debian's
# libgloo-dev. The command and the library know nothing of Gloo; they load the module when ranks connect.
find_package(Gloo QUIET CONFIG)
if(NOT Gloo_FOUND)
  message(STATUS "No Gloo (libgloo-dev): several processes train together over MPI alone")
  return()
endif()

file(GLOB gloo_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/distribution/gloo/*.cc")
add_module(gloo ${gloo_sources})
target_link_libraries(onnx_train_gloo PRIVATE gloo xxhash)
install_module(gloo)
