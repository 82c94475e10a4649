# libonnx_train.so: the C interface, and the parts below the command, whose symbols the command and the modules of devices
# link against (library/exports.map). Its headers, and what find_package and pkg-config need to know of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(GLOB library_sources CONFIGURE_DEPENDS library/*.cc)
add_library(onnx_train SHARED ${library_sources})
target_link_libraries(onnx_train PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,platform,passes,kernels,cpu_kernels,runtime>" strict_warnings
  ${CMAKE_DL_LIBS})
optimize_less(onnx_train -O2)
target_include_directories(onnx_train INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_options(onnx_train PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/library/exports.map"
  "LINKER:--gc-sections" "LINKER:-z,defs" "LINKER:-Bsymbolic-functions")
set_target_properties(onnx_train PROPERTIES
  LINK_DEPENDS "${PROJECT_SOURCE_DIR}/library/exports.map"
  VERSION ${PROJECT_VERSION} SOVERSION 0 LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
# The folder of the build is laid out as that of an installation. A search path of the build's own would end with an
# empty entry (CMake's room for the one of the installation): the loader looks for each library in the current folder
# then, which costs 4% of the start, and loads what somebody has put there.
get_target_property(dnnl_file DNNL::dnnl LOCATION)
get_filename_component(dnnl_folder "${dnnl_file}" DIRECTORY)
file(CREATE_LINK "${dnnl_folder}/libdnnl.so.3" "${PROJECT_BINARY_DIR}/libdnnl.so.3" SYMBOLIC)

# add_module(NAME SOURCE...): libonnx_train_NAME.so, which is loaded from beside the library where something asks for it
# (kernels/modules.h): Device::find("NAME"), for a device.
function(add_module name)
  add_library(onnx_train_${name} MODULE ${ARGN})
  target_link_libraries(onnx_train_${name} PRIVATE onnx_train $<COMPILE_ONLY:runtime> strict_warnings)
  target_link_options(onnx_train_${name} PRIVATE "LINKER:-z,defs")
  set_target_properties(onnx_train_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    INSTALL_RPATH "$ORIGIN")
endfunction()

install(TARGETS onnx_train spin_limit EXPORT onnx_train LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY include/onnx_train DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
# oneDNN comes from no package of the system: its library goes along.
install(FILES "${dnnl_folder}/libdnnl.so.3" DESTINATION "${CMAKE_INSTALL_LIBDIR}")

set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/onnx_train")
install(EXPORT onnx_train NAMESPACE onnx_train:: FILE onnx_trainConfig.cmake DESTINATION "${config_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/onnx_trainConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
configure_file(cmake/onnx_train.pc.in "${PROJECT_BINARY_DIR}/onnx_train.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/onnx_trainConfigVersion.cmake" DESTINATION "${config_folder}")
install(FILES "${PROJECT_BINARY_DIR}/onnx_train.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
