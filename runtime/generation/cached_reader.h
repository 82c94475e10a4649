// Reads texts with a cache of keys and values (onnx_passes/tokens/add_cache.h): what a text begins with as the one
// before is not read again. The caller owns model and reader, and uses them from one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx_passes/tokens/add_cache.h"
#include "runtime/data/dataset.h"
#include "runtime/generation/logits.h"
#include "runtime/session/session.h"

namespace onnx_train {

// The cached twin of a session's model, with the weights that it has at present and the same options, in a session of
// its own.
class CachedModel {
 public:
  // Throws Error that names what cannot be cached.
  explicit CachedModel(const Session& session);

  Session& session() const { return *session_; }
  const std::vector<CachedTensor>& tensors() const { return tensors_; }

 private:
  std::vector<CachedTensor> tensors_;
  std::unique_ptr<Session> session_;
};

// Texts of one length, side by side.
class CachedReader {
 public:
  // `context`: the most tokens that are read; of a longer text the last ones are, anew for each token.
  // `filled`: how many tokens at the beginning of each text only make it as long as the others. Masks hide them, and
  // positions count from the token after them; so a model with both as inputs reads the text as if it were alone.
  CachedReader(const CachedModel& model, int64_t context, std::vector<int64_t> filled);

  // The logits after the last token of each text. Tokens with which all texts begin as those of the call before are
  // not read again; with nothing in common, texts are read whole.
  Logits next(const Texts& texts);
  // The tokens of a text that the last call has read.
  int64_t read() const { return read_; }
  const std::vector<int64_t>& filled() const { return filled_; }
  // The seconds that calls until now have taken to plan: once for each of a few sizes.
  double planning() const { return planning_; }
  // Computes the logits of the last call, for the same texts, in the other way, and returns whether they agree.
  bool agrees(const Texts& texts);

 private:
  const TensorMap& run(const Texts& texts, int64_t from, int64_t length, bool with_cache);
  const TensorMap& run_all(const Texts& texts);
  Tensor tokens_of(const Texts& texts, int64_t from, int64_t length) const;
  void keep(const TensorMap& outputs, int64_t count);
  void make_room(int64_t length);
  void set_places(int64_t places);
  int64_t in_common(const Texts& texts) const;
  Logits read_whole(const Texts& texts);
  Logits read_rest(const Texts& texts, int64_t known);
  Tensor mask_of(const InputSpec& spec, int64_t length, const std::vector<int64_t>& filled) const;
  Tensor counted(const InputSpec& spec, int64_t from, int64_t length, const std::vector<int64_t>& filled) const;
  Tensor empty_cache(const CachedTensor& tensor, int64_t texts, int64_t places) const;
  Logits logits_of(const TensorMap& outputs, const Texts& texts, int64_t place) const;

  const CachedModel& model_;
  const int64_t context_;
  const std::vector<InputSpec> inputs_;
  const InputSpec* const tokens_;
  const std::vector<int64_t> filled_;
  Texts texts_;                    // the last ones that were no longer than the context
  int64_t used_ = 0, places_ = 0;  // of the cache, which holds the first used_ tokens of texts_
  int64_t read_ = 0;
  bool has_read_all_ = false;  // in the last call
  double planning_ = 0;
  std::vector<Tensor> past_;
  TensorMap given_;
  Logits last_;
};

}  // namespace onnx_train
