# libonnx_train.so: the C interface, and the parts below the command, whose symbols the command and the modules of devices
# link against (library/exports.map). Its headers, and what find_package and pkg-config need to know of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# What only this library loads is installed apart: a system may have another oneDNN.
set(private_folder "${CMAKE_INSTALL_LIBDIR}/onnx-train")

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
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/onnx-train;$ORIGIN")
# The folder of the build is laid out as that of an installation. A search path of the build's own would end with an
# empty entry (CMake's room for the one of the installation): the loader looks for each library in the current folder
# then, which costs 4% of the start, and loads what somebody has put there.
# The oneDNN of scripts/bootstrap comes from no package of the system, so it goes along; any other one stays where it is.
set(bundled_dnnl "")
if(ONNX_TRAIN_ONEDNN)
  get_target_property(dnnl_file DNNL::dnnl LOCATION)
  cmake_path(IS_PREFIX DEPS "${dnnl_file}" NORMALIZE bundles_dnnl)
  if(bundles_dnnl)
    get_filename_component(dnnl_folder "${dnnl_file}" DIRECTORY)
    set(bundled_dnnl "${dnnl_folder}/libdnnl.so.3")
    file(CREATE_LINK "${bundled_dnnl}" "${PROJECT_BINARY_DIR}/libdnnl.so.3" SYMBOLIC)
    install(FILES "${bundled_dnnl}" DESTINATION "${private_folder}" COMPONENT library)
  endif()
endif()

# add_module(NAME SOURCE...): libonnx_train_NAME.so, which is loaded from beside the library where something asks for it
# (kernels/modules.h): Device::find("NAME"), for a device.
function(add_module name)
  add_library(onnx_train_${name} MODULE ${ARGN})
  target_link_libraries(onnx_train_${name} PRIVATE onnx_train $<COMPILE_ONLY:runtime> strict_warnings)
  target_link_options(onnx_train_${name} PRIVATE "LINKER:-z,defs")
  set_target_properties(onnx_train_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    INSTALL_RPATH "$ORIGIN")
endfunction()
function(install_module name)
  install(TARGETS onnx_train_${name} LIBRARY DESTINATION "${private_folder}" COMPONENT ${name})
endfunction()

install(TARGETS onnx_train EXPORT onnx_train
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development)
install(TARGETS spin_limit EXPORT onnx_train LIBRARY DESTINATION "${private_folder}" COMPONENT library)
install(DIRECTORY include/onnx_train DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)

set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/onnx_train")
install(EXPORT onnx_train NAMESPACE onnx_train:: FILE onnx_trainConfig.cmake DESTINATION "${config_folder}"
  COMPONENT development)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/onnx_trainConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/onnx_trainConfigVersion.cmake" DESTINATION "${config_folder}" COMPONENT development)
set(pc_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pc_to_prefix "/${pc_folder}" "/")
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/onnx_train.pc.in "${PROJECT_BINARY_DIR}/onnx_train.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/onnx_train.pc" DESTINATION "${pc_folder}" COMPONENT development)
