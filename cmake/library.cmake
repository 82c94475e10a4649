# libonnx_train.so with the C interface, the headers, and what find_package and pkg-config need to know of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(GLOB library_sources CONFIGURE_DEPENDS library/*.cc)
add_library(onnx_train SHARED ${library_sources})
target_link_libraries(onnx_train PRIVATE runtime strict_warnings)
target_include_directories(onnx_train INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_options(onnx_train PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/library/exports.map"
  "LINKER:--exclude-libs,ALL" "LINKER:--gc-sections" "LINKER:-z,defs")
set_target_properties(onnx_train PROPERTIES
  LINK_DEPENDS "${PROJECT_SOURCE_DIR}/library/exports.map"
  VERSION ${PROJECT_VERSION} SOVERSION 0 LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
  INSTALL_RPATH "$ORIGIN")
set_target_properties(onnx-train PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

install(TARGETS onnx_train EXPORT onnx_train LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(TARGETS onnx-train RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY include/onnx_train DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
# oneDNN comes from no package of the system: its library goes along.
get_target_property(dnnl_file DNNL::dnnl LOCATION)
get_filename_component(dnnl_folder "${dnnl_file}" DIRECTORY)
install(FILES "${dnnl_folder}/libdnnl.so.3" DESTINATION "${CMAKE_INSTALL_LIBDIR}")

set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/onnx_train")
install(EXPORT onnx_train NAMESPACE onnx_train:: FILE onnx_trainConfig.cmake DESTINATION "${config_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/onnx_trainConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
configure_file(cmake/onnx_train.pc.in "${PROJECT_BINARY_DIR}/onnx_train.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/onnx_trainConfigVersion.cmake" DESTINATION "${config_folder}")
install(FILES "${PROJECT_BINARY_DIR}/onnx_train.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
