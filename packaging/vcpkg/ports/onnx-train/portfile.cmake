vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
# The interface is C: programs that are compiled for debugging take the same library.
set(VCPKG_BUILD_TYPE release)

# Whoever publishes a release gives its address and checksum; scripts/package vcpkg fills in those of an archive that it makes.
vcpkg_download_distfile(ARCHIVE
    URLS "https://example.org/onnx-train-${VERSION}.tar.gz"
    FILENAME "onnx-train-${VERSION}.tar.gz"
    SHA512 0
)
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${ARCHIVE}")

# The port `onnx` has everybody's namespace. A copy in a namespace of its own goes into the library, statically, since other copies
# of ONNX live in the same process.
set(ONNX_VERSION 1.23.2)
vcpkg_download_distfile(ONNX_ARCHIVE
    URLS "https://pypi.org/packages/source/o/onnx/onnx-${ONNX_VERSION}.tar.gz"
    FILENAME "onnx-${ONNX_VERSION}.tar.gz"
    SHA512 0118ab1ea11102e71dae8d0fd0e50ae3c5aceaf27db50b2582305f5b93150f7b3b416079672f10556ff7fa4125327be6f8e56d747e13db666a92e0fc51787faa
)
vcpkg_extract_source_archive(ONNX_SOURCE_PATH ARCHIVE "${ONNX_ARCHIVE}" SOURCE_BASE onnx)

vcpkg_find_acquire_program(PYTHON3)
find_program(PROTOC NAMES protoc PATHS "${CURRENT_HOST_INSTALLED_DIR}/tools/protobuf" REQUIRED NO_DEFAULT_PATH NO_CMAKE_PATH)
set(ONNX_FOLDER "${CURRENT_BUILDTREES_DIR}/onnx-installed")
file(REMOVE_RECURSE "${ONNX_FOLDER}")
vcpkg_cmake_configure(
    SOURCE_PATH "${ONNX_SOURCE_PATH}"
    LOGFILE_BASE "config-onnx-${TARGET_TRIPLET}"
    OPTIONS
        -C "${SOURCE_PATH}/cmake/onnx.cmake"
        "-DProtobuf_PROTOC_EXECUTABLE=${PROTOC}"
        "-DPython3_EXECUTABLE=${PYTHON3}"
        "-DCMAKE_INSTALL_PREFIX=${ONNX_FOLDER}"
    OPTIONS_RELEASE
        -DBUILD_SHARED_LIBS=OFF  # after the one of the triplet
    MAYBE_UNUSED_VARIABLES
        Protobuf_PROTOC_EXECUTABLE
        Python3_EXECUTABLE
)
vcpkg_cmake_build(TARGET install LOGFILE_BASE build-onnx)

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DONNX_TRAIN_TESTS=OFF
        -DONNX_TRAIN_WERROR=OFF
        -DCMAKE_DISABLE_FIND_PACKAGE_Gloo=ON
        -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
        -DCMAKE_DISABLE_FIND_PACKAGE_Python=ON
        -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON
        "-DONNX_DIR=${ONNX_FOLDER}/lib/cmake/ONNX"
    MAYBE_UNUSED_VARIABLES
        CMAKE_DISABLE_FIND_PACKAGE_MPI
)
vcpkg_cmake_build(TARGET onnx-train)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME onnx_train CONFIG_PATH lib/cmake/onnx_train)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES onnx-train AUTO_CLEAN)

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE" "${ONNX_SOURCE_PATH}/LICENSE")
