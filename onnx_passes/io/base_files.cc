#include "onnx_passes/io/base_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

struct Search {
  std::string named, also;
};

Search& search() {
  static Search places;
  return places;
}

// A model and the file in the same folder, if the model is not that file itself; or a file in a folder.
void add_named(const std::string& named, const std::string& name, std::vector<std::string>* places) {
  std::error_code error;
  if (fs::is_directory(named, error)) return places->push_back(concat(named, "/", name));
  places->push_back(named);
  places->push_back(concat(split_path(named).first, "/", name));
}

std::vector<std::string> places_of(const BaseFile& base, const std::string& folder) {
  const std::string name = split_path(base.absolute).second;
  std::vector<std::string> places;
  if (!search().named.empty()) {
    add_named(search().named, name, &places);
    return places;
  }
  places = {concat(folder, "/", base.relative), base.absolute, concat(folder, "/", name)};
  if (!search().also.empty()) add_named(search().also, name, &places);
  return places;
}

constexpr const char* kWayOut = "; put it beside the checkpoint, or say where it is: --base-model FILE";

}  // namespace

bool may_be_base(const std::string& path) {
  return std::ranges::none_of(path, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

std::string base_record(const std::vector<BaseFile>& files) {
  std::string text;
  for (const BaseFile& file : files)
    text += concat(file.location, '\t', file.bytes, '\t', file.hash, '\t', file.relative, '\t', file.absolute, '\n');
  return text;
}

std::vector<BaseFile> parse_base_record(const std::string& text) {
  std::vector<BaseFile> files;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream rest(line);
    for (std::string field; std::getline(rest, field, '\t');) fields.push_back(field);
    BaseFile file;
    const bool is_whole = fields.size() == 5 && std::ranges::none_of(fields, &std::string::empty);
    const char* const end = is_whole ? fields[1].data() + fields[1].size() : nullptr;
    if (!is_whole || std::from_chars(fields[1].data(), end, file.bytes).ptr != end)
      fail_as(ErrorCode::kCheckpointDamaged, "its metadata ", kBase, " are damaged");
    file.location = fields[0];
    file.hash = fields[2];
    file.relative = fields[3];
    file.absolute = fields[4];
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<BaseFile> take_base_record(onnx::ModelProto* model) {
  auto* entries = model->mutable_metadata_props();
  for (int i = 0; i < entries->size(); ++i) {
    if (entries->Get(i).key() != kBase) continue;
    const std::string text = entries->Get(i).value();
    entries->DeleteSubrange(i, 1);
    return parse_base_record(text);
  }
  return {};
}

void look_for_base_in(const std::string& named) { search().named = named; }
void also_look_for_base_in(const std::string& named) { search().also = named; }

File open_base(const BaseFile& base, const std::string& folder, std::string* path) {
  std::string looked, other;
  for (const std::string& place : places_of(base, folder)) {
    File file = platform::open_to_read(place);
    const std::optional<platform::FileStatus> status = file.is_open() ? file.status() : std::nullopt;
    const bool is_file = status && status->is_regular;
    if (is_file && status->size == base.bytes) {
      *path = place;
      return file;
    }
    if (is_file && other.empty()) other = concat(place, " has ", status->size, " bytes");
    if (looked.find(place) == std::string::npos) looked += concat(looked.empty() ? "" : ", ", place);
  }
  fail_as(ErrorCode::kExternalData, "its frozen weights are in ", base.absolute, ", ", base.bytes, " bytes; ",
          other.empty() ? concat("there is no such file at ", looked) : concat(other, ": another file"), kWayOut);
}

void refuse_base(const BaseFile& base, const std::string& path) {
  fail_as(ErrorCode::kExternalData, "its frozen weights are in ", base.absolute, ", and ", path,
          " holds others than those that it was trained with", kWayOut);
}

}  // namespace onnx_train
