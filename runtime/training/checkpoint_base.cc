#include "runtime/training/checkpoint_base.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "onnx_passes/io/hash.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/checkpoint_checksum.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

// Below it a checkpoint is written in no time, and one file is what people copy.
constexpr size_t kLeastBytes = size_t{16} << 20;

bool is_frozen(const onnx::TensorProto& tensor) { return reference_of(tensor) && !is_state_of_session(tensor); }

// The large tensors of a training model, by name; none where the file is not one, or a checkpoint.
std::map<std::string, Tensor> tensors_of(const std::string& file) {
  std::map<std::string, Tensor> tensors;
  if (file.empty()) return tensors;
  try {
    const ModelMessage message = load_message(file);
    if (is_checkpoint(message.proto)) return tensors;
    for (const onnx::TensorProto* tensor : stored_tensors(message.proto)) {
      if (const auto index = reference_of(*tensor)) tensors.emplace(tensor->name(), message.contents.at(*index));
    }
  } catch (const Error&) {  // the checkpoints hold what no file has
    tensors.clear();
  }
  return tensors;
}

bool are_equal(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const auto place = mapped_place(a.data(), a.bytes()), other = mapped_place(b.data(), b.bytes());
  if (place && other && place->is_in_place && other->is_in_place && place->offset == other->offset) {
    std::error_code error;
    if (fs::equivalent(place->path, other->path, error)) return true;
  }
  bool equal = true;
  const auto* at = static_cast<const char*>(b.data());
  for_each_block(a, [&](const void* data, size_t bytes) {
    equal = equal && std::memcmp(data, at, bytes) == 0;
    release_pages(at, bytes);
    at += bytes;
  });
  return equal;
}

// Whether a run in `folder` replaces the file.
bool is_of_checkpoint(const fs::path& path, const fs::path& folder) {
  const std::string name = path.filename().string();
  return path.parent_path() == folder && (name.starts_with("last.onnx") || name.starts_with("best.onnx"));
}

}  // namespace

CheckpointBase::CheckpointBase(const Model& model, const BaseOptions& options, const std::string& folder) {
  const ModelMessage message = to_message(model);
  const std::vector<const onnx::TensorProto*> tensors = stored_tensors(message.proto);
  places_.resize(tensors.size());
  size_t all = 0, frozen = 0;
  for (const onnx::TensorProto* tensor : tensors) {
    all += declared_bytes(*tensor);
    if (is_frozen(*tensor)) frozen += declared_bytes(*tensor);
  }
  const bool is_worth_it =
      options.when == "refer" || (options.when == "auto" && frozen >= kLeastBytes && frozen >= all / 2);
  if (!is_worth_it || frozen == 0) return;
  const bool is_of_run = checkpoint_position(model).has_value();
  const std::map<std::string, Tensor> named = tensors_of(options.file);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_frozen(*tensors[i])) continue;
    const Tensor& own = message.contents.at(*reference_of(*tensors[i]));
    const auto found = named.find(tensors[i]->name());
    if (found != named.end() && are_equal(own, found->second) && add(i, found->second, folder)) continue;
    const auto place = mapped_place(own.data(), own.bytes());
    if (place && (place->is_base || !is_of_run)) add(i, own, folder);
  }
  if (options.when == "refer" || (bytes_ >= kLeastBytes && bytes_ >= all / 2)) return;
  bytes_ = 0;  // no file holds enough of them
  std::ranges::fill(places_, std::nullopt);
}

bool CheckpointBase::add(size_t i, const Tensor& contents, const std::string& folder) {
  const auto place = mapped_place(contents.data(), contents.bytes());
  std::error_code error;
  if (!place || !place->is_in_place) return false;
  const fs::path file = fs::canonical(place->path, error), run = error ? fs::path() : fs::canonical(folder, error);
  if (error || !may_be_base(file.string()) || !may_be_base(run.string()) || is_of_checkpoint(file, run)) return false;
  const std::string relative = file.lexically_relative(run).generic_string();
  const std::string location = relative.starts_with("../") ? file.filename().string() : relative;
  auto known = std::ranges::find(files_, file.string(), &BaseFile::absolute);
  if (known == files_.end()) {
    if (std::ranges::find(files_, location, &BaseFile::location) != files_.end()) return false;
    known = files_.insert(known, {location, place->file_bytes, "", relative, file.string()});
  }
  bytes_ += contents.bytes();
  places_[i] = Place{static_cast<size_t>(known - files_.begin()), place->offset, contents};
  return true;
}

bool CheckpointBase::is_in_place() const {
  return std::ranges::all_of(places_, [](const auto& place) {
    if (!place) return true;
    const auto mapped = mapped_place(place->contents.data(), place->contents.bytes());
    return mapped && mapped->is_in_place;
  });
}

void CheckpointBase::compute_hashes() const {
  std::vector<Hash> hashes(files_.size());
  for (const auto& place : places_) {
    if (!place) continue;
    Hash& hash = hashes[place->file];
    hash.add_size(place->contents.bytes());
    for_each_block(place->contents, [&](const void* data, size_t bytes) { hash.add_bytes(data, bytes); });
  }
  for (size_t i = 0; i < files_.size(); ++i) files_[i].hash = hashes[i].hex();
}

void CheckpointBase::refer(ModelMessage* message) const {
  if (empty()) return;
  if (files_.front().hash.empty()) compute_hashes();
  const std::vector<onnx::TensorProto*> tensors = stored_tensors(&message->proto);
  if (tensors.size() != places_.size()) fail("the session's model has changed since its base was found");
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!places_[i]) continue;
    const Place& place = *places_[i];
    message->contents[*reference_of(*tensors[i])] = Tensor(DType::kUint8, {0});  // nothing refers to it any more
    refer_to_data_file(files_[place.file].location, place.offset, place.contents.bytes(), tensors[i]);
  }
  auto* record = message->proto.add_metadata_props();
  record->set_key(kBase);
  record->set_value(base_record(files_));
}

}  // namespace onnx_train
