// Reads texts with a cache of keys and values (onnx_passes/tokens/add_cache.h): a prompt at once, then each token that
// is written alone. The caller owns model and reader, and uses them from one thread.
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
  CachedReader(const CachedModel& model, int64_t context);

  // The logits after the last token of each text. Texts that are one token longer than those of the call before are
  // those with one token more; any others are read whole.
  Logits next(const Texts& texts);
  // The seconds that calls until now have taken to plan: once for each of a few sizes.
  double planning() const { return planning_; }
  // Computes the logits of the last call, for the same texts, in the other way, and returns whether they agree.
  bool agrees(const Texts& texts);

 private:
  const TensorMap& run(const Texts& texts, int64_t from, int64_t length, bool with_cache);
  const TensorMap& run_all(const Texts& texts);
  Tensor tokens_of(const Texts& texts, int64_t from, int64_t length) const;
  void keep(const TensorMap& outputs, int64_t count);
  void make_room(int64_t length, int64_t texts);
  Tensor empty_cache(const CachedTensor& tensor, int64_t texts, int64_t places) const;
  Logits logits_of(const TensorMap& outputs, const Texts& texts, int64_t place) const;

  const CachedModel& model_;
  const int64_t context_;
  const std::vector<InputSpec> inputs_;
  const InputSpec* const tokens_;
  int64_t used_ = 0, places_ = 0;  // of the cache
  bool has_read_all_ = false;      // in the last call
  double planning_ = 0;
  std::vector<Tensor> past_;
  TensorMap given_;
  Logits last_;
};

}  // namespace onnx_train
