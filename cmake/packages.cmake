# Debian packages, by CPack: cmake --preset deb && cmake --build --preset deb (packaging/README.md). What they hold are the
# components of the installation; what only Debian wants is in packaging/debian/. They are laid out for /usr alone.
if(SKBUILD OR NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  return()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME onnx-train)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
if(NOT CPACK_DEBIAN_PACKAGE_MAINTAINER MATCHES "^.+ <.+@.+>$")
  set(CPACK_DEBIAN_PACKAGE_MAINTAINER "Nobody <nobody@localhost>")
endif()
set(CPACK_DEBIAN_PACKAGE_SOURCE onnx-train)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PROJECT_BINARY_DIR}")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/packaging/debian/complete.cmake")
set(CPACK_ONNX_TRAIN_SOURCE "${PROJECT_SOURCE_DIR}")

# deb(COMPONENT NAME SECTION SUMMARY TEXT [VARIABLE VALUE]...)
macro(deb component name section summary text)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "training of ONNX models (${summary})\n\
A forward model becomes a training model: one ONNX file with its loss,\n\
gradients, optimizer and state, which is trained without a framework.\n\
.\n${text}")
  set(pairs ${ARGN})
  while(pairs)
    list(POP_FRONT pairs variable value)
    set(CPACK_DEBIAN_${upper}_${variable} "${value}")
  endwhile()
endmacro()

set(same_library "libonnx-train0 (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/shlibs" CONTENT "libonnx_train 0 libonnx-train0 (>= ${PROJECT_VERSION})\n")
deb(command onnx-train science command
  "This package has the command onnx-train, its manual pages, and its\ncompletions for bash, zsh and fish."
  PACKAGE_DEPENDS "${same_library}" PACKAGE_RECOMMENDS onnx-train-gloo)
# Its OpenBLAS is the one of OpenMP whichever the system prefers (complete.cmake): two pools of threads would share the cores.
deb(library libonnx-train0 libs library
  "This package has the library with its interface for C, and oneDNN 3 in a\nfolder of its own."
  PACKAGE_DEPENDS libopenblas0-openmp PACKAGE_MULTIARCH same)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/packaging/debian/triggers" "${PROJECT_BINARY_DIR}/shlibs")
deb(development libonnx-train-dev libdevel "files for development"
  "This package has the headers for C and C++, and what pkg-config and CMake\nread."
  PACKAGE_DEPENDS "${same_library}" PACKAGE_MULTIARCH same)
if(TARGET onnx_train_gloo)
  deb(gloo onnx-train-gloo science "several processes"
    "This package has the module through which several processes train one\nmodel together, over Gloo."
    PACKAGE_DEPENDS "${same_library}" PACKAGE_MULTIARCH same)
endif()
include(CPack)
