#include "tools/sweep/run_record.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

using nlohmann::ordered_json;

constexpr const char* kRunRecord = "/sweep.json";

// A path may hold bytes that are no UTF-8.
std::string as_text(const ordered_json& json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

bool is_of(const RunRecord& record, const std::vector<std::string>& arguments) {
  return as_text(record.arguments) == as_text(arguments);
}

std::optional<RunRecord> read_run_record(const std::string& folder) {
  if (!path_exists(folder + kRunRecord)) return {};
  const auto json = nlohmann::json::parse(read_file(folder + kRunRecord), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("arguments") || !json["arguments"].is_array()) return {};
  RunRecord record;
  for (const auto& argument : json["arguments"]) {
    if (!argument.is_string()) return {};
    record.arguments.push_back(argument);
  }
  if (json.contains("failure") && json["failure"].is_string()) record.failure = json["failure"];
  return record;
}

void write_run_record(const std::string& folder, const RunRecord& record) {
  ordered_json json = {{"arguments", record.arguments}};
  if (!record.failure.empty()) json["failure"] = record.failure;
  write_file(folder + kRunRecord, as_text(json) + "\n");
}

void remove_run_record(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove(folder + kRunRecord, error);
}

}  // namespace onnx_train
