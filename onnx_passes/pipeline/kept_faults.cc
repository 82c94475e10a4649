#include "onnx_passes/pipeline/kept_faults.h"

#include <filesystem>

#include "platform/file.h"

namespace onnx_train {
namespace {

// A new folder that other users cannot read; "" if it cannot be made.
std::string new_folder() {
  std::error_code error;
  const std::string prefix = (std::filesystem::temp_directory_path(error) / "onnx-train-fault-").string();
  return error ? "" : platform::make_temporary_folder(prefix);
}

}  // namespace

PassFault keep_fault(const PassFault& fault, PipelineOptions pipeline,
                     const std::function<void(const PipelineOptions&)>& work) {
  const std::string bug = concat(fault.what(), "; this is a bug of onnx-train");
  const std::string folder = new_folder();
  if (folder.empty()) return fault.kept(bug);
  pipeline.observe = nullptr;
  pipeline.kept = fault.place();
  pipeline.kept_file = concat(folder, "/before_", fault.place().name, ".onnx");
  try {
    work(pipeline);
  } catch (const std::exception&) {
    // The same fault again, or one of writing the file.
  }
  std::error_code error;
  if (!std::filesystem::exists(pipeline.kept_file, error)) {
    std::filesystem::remove_all(folder, error);
    return fault.kept(bug);
  }
  return fault.kept(concat(bug, ", which this shows: onnx-train opt ", pipeline.kept_file, " -o after.onnx --passes ",
                           fault.place().name, ", with the options of this command"));
}

}  // namespace onnx_train
