#include "runtime/training/checkpoint_shards.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/training/checkpoint_checksum.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

// The ranks that can write a tensor of a session's model: of states those that keep it, of other tensors all.
std::vector<int> writers_of(const onnx::TensorProto& tensor, const Topology& topology) {
  if (is_state_of_session(tensor)) return topology.keepers(tensor.name());
  std::vector<int> all(static_cast<size_t>(topology.ranks()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool stays_in_model(const onnx::TensorProto& tensor, const std::vector<int>& writers, size_t bytes) {
  const bool is_beside = is_state_of_session(tensor) || reference_of(tensor);
  return !is_beside || bytes == 0 || (bytes < kMinBytesBeside && writers.front() == 0);
}

// The rank that writes each tensor into its file; none for what stays in the model. Tensors that several ranks have go
// to the one that has the least to write, the largest first.
std::vector<std::optional<int>> share_out_writing(const std::vector<const onnx::TensorProto*>& tensors,
                                                  const std::vector<size_t>& sizes, const Topology& topology) {
  std::vector<std::optional<int>> writer(tensors.size());
  std::vector<size_t> to_write(static_cast<size_t>(topology.ranks()));  // bytes of each rank
  std::vector<std::pair<size_t, std::vector<int>>> shared;
  const auto assign = [&](size_t i, int rank) {
    writer[i] = rank;
    to_write[static_cast<size_t>(rank)] += sizes[i];
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<int> able = writers_of(*tensors[i], topology);
    if (stays_in_model(*tensors[i], able, sizes[i])) continue;
    if (able.size() > 1) {
      shared.emplace_back(i, std::move(able));
    } else {
      assign(i, able.front());
    }
  }
  std::ranges::stable_sort(shared, std::greater(), [&](const auto& tensor) { return sizes[tensor.first]; });
  for (const auto& [i, able] : shared)
    assign(i, *std::ranges::min_element(able, {}, [&](int r) { return to_write[static_cast<size_t>(r)]; }));
  return writer;
}

void sync_folder(const std::string& path) {
  if (!platform::sync_folder(path))
    fail_as(ErrorCode::kCannotWrite, path, ": cannot write the folder: ", std::strerror(errno));
}

// The folders in `folder` that models there refer to; nothing where the system cannot read one of them. What is no
// model refers to none.
std::optional<std::set<std::string>> used_folders(const std::string& folder) {
  std::set<std::string> used;
  std::error_code error, of_file;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".onnx" || !it->is_regular_file(of_file)) continue;
    try {
      const auto files = data_files_of(it->path().string()).value_or(std::set<std::string>());
      for (const std::string& location : files) used.insert(fs::path(location).lexically_normal().begin()->string());
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return error ? std::nullopt : std::optional(used);
}

}  // namespace

ShardLayout lay_out_shards(const Model& model, const Topology& topology, const CheckpointBase* base) {
  const ModelMessage message = to_message(model);
  const std::vector<const onnx::TensorProto*> tensors = stored_tensors(message.proto);
  std::vector<size_t> sizes;
  for (size_t i = 0; i < tensors.size(); ++i)
    sizes.push_back(base && base->has(i) ? 0 : declared_bytes(*tensors[i]));  // no bytes: it stays in the model
  const std::vector<std::optional<int>> writers = share_out_writing(tensors, sizes, topology);
  ShardLayout layout;
  layout.bytes = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  layout.places.resize(tensors.size());
  for (int r = 0; r < topology.ranks(); ++r) {
    std::vector<size_t> own, own_sizes;
    size_t states = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (writers[i].value_or(0) == r && is_state_of_session(*tensors[i])) states += sizes[i];
      if (writers[i] != r) continue;
      own.push_back(i);
      own_sizes.push_back(sizes[i]);
    }
    const std::vector<size_t> offsets = data_offsets(own_sizes);
    for (size_t k = 0; k < own.size(); ++k)
      layout.places[own[k]] = {.rank = r, .offset = offsets[k], .bytes = own_sizes[k]};
    layout.file_bytes.push_back(offsets.back());
    layout.state_bytes.push_back(states);
  }
  return layout;
}

ModelMessage make_shards(const Model& model, const ShardLayout& layout, int rank, const StateContents& state,
                         const TrainingPosition& position, const std::string& folder, std::vector<Tensor>* own) {
  ModelMessage message = to_message(model);
  const std::vector<onnx::TensorProto*> tensors = stored_tensors(&message.proto);
  if (tensors.size() != layout.places.size()) fail("the session's model has changed since its shards were laid out");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& place = layout.places[i];
    const bool is_state = is_state_of_session(*tensors[i]);
    if (!place) {
      if (is_state && rank == 0) put_beside(state(tensors[i]->name()), &message.contents, tensors[i]);
      continue;
    }
    const auto reference = reference_of(*tensors[i]);
    if (place->rank == rank) own->push_back(is_state ? state(tensors[i]->name()) : message.contents.at(*reference));
    if (reference) message.contents[*reference] = Tensor(DType::kUint8, {0});  // nothing refers to it any more
    refer_to_data_file(concat(folder, "/", shard_file(place->rank)), place->offset, place->bytes, tensors[i]);
  }
  set_position(position, &message);
  return message;
}

std::string shard_folder(int64_t step, uint32_t number) {
  return concat("step-", step, number > 0 ? concat(".", number) : "");
}

std::string shard_file(int rank) { return concat("rank-", rank, ".data"); }

uint32_t make_shard_folder(const std::string& folder, int64_t step) {
  for (uint32_t number = 0;; ++number) {
    const std::string path = concat(folder, "/", shard_folder(step, number));
    if (platform::make_folder(path)) {
      sync_folder(folder);
      return number;
    }
    if (errno != EEXIST) fail_as(ErrorCode::kCannotWrite, path, ": cannot make the folder: ", std::strerror(errno));
  }
}

std::vector<std::string> write_shard(const std::string& path, const std::vector<Tensor>& own) {
  std::vector<Hash> hashes(own.size());
  write_data_file(path, own, [&](size_t i, const void* data, size_t bytes) { hashes[i].add_bytes(data, bytes); });
  std::vector<std::string> checksums;
  for (const Hash& hash : hashes) checksums.push_back(hash.hex());
  return checksums;
}

void check_shards(const std::string& path, const ShardLayout& layout) {
  for (size_t r = 0; r < layout.file_bytes.size(); ++r) {
    const std::string name = concat(path, "/", shard_file(static_cast<int>(r)));
    const File file = platform::open_to_read(name);  // also where a network's file system remembers a size
    const std::optional<platform::FileStatus> status = file.is_open() ? file.status() : std::nullopt;
    if (!status)
      fail_as(ErrorCode::kCannotWrite, name, ": rank ", r,
              " has written it, and rank 0 cannot open it: ", std::strerror(errno));
    if (status->size != layout.file_bytes[r])
      fail_as(ErrorCode::kCannotWrite, name, ": rank ", r, " has written ", layout.file_bytes[r],
              " bytes, and rank 0 sees ", status->size);
  }
}

std::vector<std::string> in_order(const ShardLayout& layout, const std::vector<std::string>& of_ranks) {
  std::vector<std::istringstream> texts;
  for (const std::string& text : of_ranks) texts.emplace_back(text);
  std::vector<std::string> checksums(layout.places.size());
  for (size_t i = 0; i < checksums.size(); ++i) {
    if (layout.places[i]) texts[static_cast<size_t>(layout.places[i]->rank)] >> checksums[i];
  }
  return checksums;
}

void remove_unused_shards(const std::string& folder) {
  static const std::regex kFolder(R"(step-\d+(\.\d+)?)"), kFile(R"(\.?rank-\d+\.data(\.\w{6})?)");
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code of_file;
    if (it->symlink_status(of_file).type() == fs::file_type::directory &&
        std::regex_match(it->path().filename().string(), kFolder))
      found.push_back(it->path());
  }
  if (found.empty()) return;
  const std::optional<std::set<std::string>> used = used_folders(folder);
  if (!used) return;
  for (const fs::path& path : found) {
    if (used->contains(path.filename().string())) continue;
    std::vector<fs::path> files;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      if (std::regex_match(it->path().filename().string(), kFile)) files.push_back(it->path());
    }
    for (const fs::path& file : files) fs::remove(file, error);
    fs::remove(path, error);  // unless other files are in it
  }
}

}  // namespace onnx_train
