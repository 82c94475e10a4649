# What the reports of the command need besides their sources.
# The style and the script of a report, as strings.
foreach(file page.css page.js)
  file(READ "${PROJECT_SOURCE_DIR}/tools/run_report/${file}" text)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/embedded/run_report/${file}.inc" CONTENT "R\"~~~(@text@)~~~\"" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/run_report/${file}")
endforeach()
# What TensorBoard reads.
add_library(event_messages STATIC tools/tensorboard/events.proto)
protobuf_generate(TARGET event_messages LANGUAGE cpp IMPORT_DIRS "${PROJECT_SOURCE_DIR}/tools/tensorboard"
  PROTOC_OUT_DIR "${PROJECT_BINARY_DIR}")
target_include_directories(event_messages SYSTEM PUBLIC "${PROJECT_BINARY_DIR}")
target_link_libraries(event_messages PUBLIC protobuf::libprotobuf-lite)
target_link_libraries(command PRIVATE event_messages)

# The stubs, which compile in any build that has tests: each function in them is one that a header declares.
if(ONNX_TRAIN_TESTS)
  add_library(minimal_stubs OBJECT tools/minimal/no_reports.cc runtime/data/images/minimal/no_decoders.cc
    kernels/none/device.cc runtime/distribution/no_sockets/no_sockets.cc)
  target_link_libraries(minimal_stubs PRIVATE $<COMPILE_ONLY:runtime> strict_warnings)
  target_compile_options(minimal_stubs PRIVATE -Wmissing-declarations)
endif()
