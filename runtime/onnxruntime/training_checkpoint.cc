#include "runtime/onnxruntime/training_checkpoint.h"

#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "embedded/training_checkpoint_generated.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

constexpr int kFirstVersion = 1, kLastVersion = 2;
constexpr const char* kAgain = "; save the checkpoint again with ONNX Runtime, or copy it again";

class OrtCheckpointReader {
 public:
  explicit OrtCheckpointReader(const std::string& path) : path_(path), file_(MappedFile::open(path)) {}

  OrtCheckpoint read() {
    const ort_format::Checkpoint& checkpoint = root();
    const auto version = checkpoint.version();
    if (version < kFirstVersion || version > kLastVersion)
      refuse(" is a checkpoint of ONNX Runtime's format version ", version, "; versions ", kFirstVersion, " and ",
             kLastVersion, " are read");
    const ort_format::ModuleState* state = checkpoint.module_state();
    if (!state) refuse(" is a checkpoint without parameters", kAgain);
    OrtCheckpoint result;
    result.is_nominal = state->is_nominal_state();
    if (state->has_external_data()) data_ = MappedFile::open(path_ + ".data");
    read_tensors(state->requires_grad_params(), &result.trained);
    read_tensors(state->frozen_params(), &result.frozen);
    for (const auto& [name, tensor] : result.trained) {
      if (result.frozen.contains(name)) refuse(": the parameter '", name, "' is trained and frozen", kAgain);
    }
    for_each(checkpoint.optimizer_groups(),
             [&](const ort_format::OptimizerGroup& group) { result.groups.push_back(group_of(group)); });
    if (const ort_format::PropertyBag* bag = checkpoint.property_bag()) read_properties(*bag, &result.properties);
    file_->check_unchanged();
    return result;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... args) const {
    fail_as(ErrorCode::kFile, path_, args...);
  }

  const ort_format::Checkpoint& root() const {
    if (file_->size() >= FLATBUFFERS_MAX_BUFFER_SIZE)
      refuse(" has ", file_->size(), " bytes, and a FlatBuffers file ends at ", FLATBUFFERS_MAX_BUFFER_SIZE);
    flatbuffers::Verifier verifier(file_->data(), file_->size());
    if (file_->size() < kIdentifierEnd || !ort_format::CheckpointBufferHasIdentifier(file_->data()))
      refuse(" is no checkpoint of ONNX Runtime's training: generate_artifacts and save_checkpoint write one");
    if (!ort_format::VerifyCheckpointBuffer(verifier)) refuse(" is cut off or damaged", kAgain);
    return *ort_format::GetCheckpoint(file_->data());
  }

  // Every field of a table may be absent, and every element of a vector is a table.
  template <typename T, typename F>
  void for_each(const flatbuffers::Vector<flatbuffers::Offset<T>>* tables, const F& f) const {
    if (!tables) return;
    for (const T* table : *tables) f(*table);
  }

  std::string text_of(const flatbuffers::String* text, const char* what) const {
    if (!text || text->size() == 0) refuse(" has ", what, " without a name", kAgain);
    return text->str();
  }

  void read_tensors(const flatbuffers::Vector<flatbuffers::Offset<ort_format::Tensor>>* tensors, TensorMap* to) {
    for_each(tensors, [&](const ort_format::Tensor& stored) {
      const std::string name = text_of(stored.name(), "a tensor");
      if (!to->emplace(name, tensor_of(stored, name)).second) refuse(" has the tensor '", name, "' twice", kAgain);
    });
  }

  Tensor tensor_of(const ort_format::Tensor& stored, const std::string& name) {
    // The verifier looks at the alignment of a vector's length, and not at that of its elements.
    Shape shape(stored.dims() ? stored.dims()->size() : 0);
    if (!shape.empty()) std::memcpy(shape.data(), stored.dims()->Data(), shape.size() * sizeof(int64_t));
    const auto* raw = stored.raw_data();
    const size_t stored_bytes = raw ? raw->size() : 0;
    if (shape.empty() && stored_bytes == 0 && stored.external_data_offset() < 0) return {};  // nominal: a name alone
    try {
      const auto dtype = static_cast<DType>(stored.data_type());
      const size_t element = size_of(dtype);
      const auto elements = static_cast<size_t>(num_elements(shape));
      const bool is_external = stored.external_data_offset() >= 0;
      if (is_external && !data_) refuse(": the tensor '", name, "' is in another file, which it does not name", kAgain);
      const MappedFile& file = is_external ? *data_ : *file_;
      if (elements > file.size() / element) refuse_size(name, shape, file.size());
      const size_t bytes = elements * element;
      const auto offset = static_cast<uint64_t>(is_external ? stored.external_data_offset() : 0);
      if (is_external && (offset > file.size() || bytes > file.size() - offset)) refuse_size(name, shape, file.size());
      if (!is_external && bytes != stored_bytes) refuse_size(name, shape, stored_bytes);
      // Tensors that share bytes would ask for more memory than the file has.
      if ((taken_ += bytes) > file_->size() + (data_ ? data_->size() : 0))
        refuse(": its tensors have more bytes than the file, so that some of them overlap", kAgain);
      const unsigned char* data = is_external ? data_->data() + offset : raw ? raw->data() : nullptr;
      return view(dtype, shape, data, bytes, is_external ? data_ : file_);
    } catch (const Error& error) {
      if (std::string(error.what()).starts_with(path_)) throw;
      refuse(": the tensor '", name, "': ", error.what());
    }
  }

  [[noreturn]] void refuse_size(const std::string& name, const Shape& shape, size_t bytes) const {
    refuse(": the tensor '", name, "' has the shape ", to_string(shape), ", and ", bytes, " bytes are there", kAgain);
  }

  // A copy where elements begin at odd addresses.
  static Tensor view(DType dtype, const Shape& shape, const unsigned char* data, size_t bytes,
                     const std::shared_ptr<const MappedFile>& owner) {
    if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % size_of(dtype) == 0) return {dtype, shape, data, owner};
    Tensor copy(dtype, shape);
    if (bytes > 0) std::memcpy(copy.data(), data, bytes);
    return copy;
  }

  OrtOptimizerGroup group_of(const ort_format::OptimizerGroup& stored) {
    OrtOptimizerGroup group{
        text_of(stored.group_name(), "an optimizer group"), stored.step(), stored.initial_learning_rate(), {}};
    if (group.step < 0) refuse(": its optimizer has done ", group.step, " steps", kAgain);
    for_each(stored.optimizer_states(), [&](const ort_format::ParameterOptimizerState& state) {
      const std::string name = text_of(state.param_name(), "an optimizer state");
      TensorMap tensors;
      read_tensors(state.momentums(), &tensors);
      if (!group.states.emplace(name, std::move(tensors)).second)
        refuse(" has the optimizer state of '", name, "' twice", kAgain);
    });
    return group;
  }

  void read_properties(const ort_format::PropertyBag& bag, std::map<std::string, std::string>* to) const {
    const auto add = [&](const auto& property, const std::string& value) {
      (*to)[text_of(property.name(), "a property")] = value;
    };
    for_each(bag.ints(), [&](const auto& property) { add(property, std::to_string(property.value())); });
    for_each(bag.floats(), [&](const auto& property) { add(property, float_text(property.value())); });
    for_each(bag.strings(),
             [&](const auto& property) { add(property, property.value() ? property.value()->str() : ""); });
  }

  static constexpr size_t kIdentifierEnd = 8;  // after the offset of the root

  std::string path_;
  std::shared_ptr<const MappedFile> file_, data_;
  size_t taken_ = 0;  // bytes of the tensors so far
};

constexpr const char* kTrainedFile = "paramtrain_tensors.pbseq";

}  // namespace

OrtCheckpoint read_ort_checkpoint(const std::string& path) {
  if (folder_exists(path)) return read_ort_checkpoint_folder(path);
  return OrtCheckpointReader(path).read();
}

bool is_ort_checkpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return std::filesystem::exists(std::filesystem::path(path) / kTrainedFile, error);
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::array<char, 8> begin{};  // the offset of the root, and the identifier
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), begin.size()) && ort_format::CheckpointBufferHasIdentifier(begin.data());
}

std::string float_text(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return {text, end};
}

}  // namespace onnx_train
