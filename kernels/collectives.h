// What the processes of one training do together: each is a rank, numbered from 0. All ranks call the same functions in
// the same order. The caller owns the object and uses it from one thread at a time. Functions block, and throw Error
// that names the rank that is gone, after which every call throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace onnx_train {

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Sends out[r] to rank r and fills in[r] with what rank r sends to this one; both sides know the sizes. Those of this
  // rank itself are copied. `what` names the exchange: Error if another rank is at one of another name or size.
  virtual void exchange(const std::string& what, const std::vector<std::span<const std::byte>>& out,
                        const std::vector<std::span<std::byte>>& in) = 0;
  // The ranks' numbers.
  std::vector<uint32_t> gather(const std::string& what, uint32_t number);
  // Tells the others why this rank ends. Never throws; a rank that ends without a word is gone for an unknown reason.
  virtual void leave(const std::string& reason) noexcept = 0;
};

}  // namespace onnx_train
