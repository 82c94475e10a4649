// RUN/sweep.json: with what a run of a sweep was started, and how it ended. It is written when a run has ended, so that
// a sweep that is started again knows what is done. Stateless; one process at a time works in a folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace onnx_train {

struct RunRecord {
  std::vector<std::string> arguments;  // of `fit`, but for the folder
  std::string failure;                 // one line; "" for a run that ended as it should
};

// Whether the record is of a run with these arguments.
bool is_of(const RunRecord& record, const std::vector<std::string>& arguments);

// Empty if there is none, or none that can be read.
std::optional<RunRecord> read_run_record(const std::string& folder);
void write_run_record(const std::string& folder, const RunRecord& record);  // throws Error
void remove_run_record(const std::string& folder);

}  // namespace onnx_train
