// Checksums of a checkpoint's tensors (XXH3-128), by which a changed byte is noticed. A checkpoint that one process
// writes has one over all tensors (onnx_train.checksum). One that ranks write together has one of each tensor in their
// files and one of the rest (onnx_train.checksums): a rank compares the tensors that it reads, and no others. So has
// one whose frozen weights are in the file of another model. Any thread; throws Error.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "onnx_passes/io/hash.h"
#include "onnx_passes/ir/protobuf.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

struct ModelMessage;

inline constexpr const char* kChecksum = "onnx_train.checksum";
// Texts with a space between them: the checksum of the rest, and of each of stored_tensors its own, or "-" where it is
// a part of the rest, or "+" where it is in the base, whose hash is compared when the file is loaded (base_files.h).
inline constexpr const char* kChecksums = "onnx_train.checksums";
inline constexpr const char* kInBase = "+";

// The initializers that a checkpoint fills and compares, of the graph and of the entry points' algorithms, in the order
// of the file.
std::vector<onnx::TensorProto*> stored_tensors(onnx::ModelProto* proto);
std::vector<const onnx::TensorProto*> stored_tensors(const onnx::ModelProto& proto);

// The checksum over a whole model: the position, then the name and data of each stored tensor. Contents beside the
// message are added while they are written.
class Checksum {
 public:
  Checksum(const onnx::ModelProto& proto, const std::string& position);

  // Adds the next bytes of element `index` of the contents.
  void add(size_t index, const void* data, size_t bytes);
  void add_all(const std::vector<Tensor>& contents);
  std::string finish();

 private:
  void add_small_ones();  // everything up to the next tensor with contents beside the message

  Hash hash_;
  std::vector<const onnx::TensorProto*> tensors_;
  std::unordered_set<size_t> listed_;
  size_t next_ = 0;
  std::optional<size_t> open_;
};

// The text of kChecksums. `own` has a text for each of stored_tensors that is in a rank's file, and "" for the others.
std::string checksums_text(const ModelMessage& message, const std::string& position,
                           const std::vector<std::string>& own);

// What is left to compare of a checkpoint that ranks have written.
class TensorChecks {
 public:
  // Compares all but the tensors with a checksum of their own, and keeps these. Throws Error that names `name`.
  TensorChecks(const ModelMessage& message, const std::string& position, const std::string& text,
               const std::string& name);
  // Reads and compares the tensors of whose name `reads` is true. Throws Error.
  void compare(const std::function<bool(const std::string&)>& reads) const;

 private:
  struct Check {
    std::string tensor, checksum;
    Tensor contents;
  };
  std::string name_;
  std::vector<Check> checks_;
};

}  // namespace onnx_train
