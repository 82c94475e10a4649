// Some of the ranks, numbered from 0 in the order of their numbers: those of one axis of a mesh. A mesh of groups has
// an axis of the stages of a pipeline, or of the parts of tensors, and "data", along which ranks with the same stage or
// part share out batches. The caller owns groups, which
// must not outlive the ranks.
#pragma once

#include <memory>

#include "kernels/collectives.h"
#include "onnx_passes/distribution/order_collectives.h"

namespace onnx_train {

class RankGroup : public Collectives {
 public:
  // `members` has this rank's number. `data` is the group that collectives with the axis "data" mean, if not this one.
  RankGroup(Collectives* ranks, std::vector<int> members, std::unique_ptr<RankGroup> data = nullptr);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string transport() const override { return ranks_.transport(); }
  Collectives& all() override { return ranks_.all(); }
  int number(int rank) const override { return ranks_.number(member(rank)); }
  Collectives* along(const std::string& axis) override { return axis == kDataAxis && data_ ? data_.get() : this; }
  void exchange_among(const std::vector<int>& members, const std::string& what,
                      const std::vector<std::span<const std::byte>>& out,
                      const std::vector<std::span<std::byte>>& in) override;
  void send(const std::string& name, int to, std::span<const std::byte> data) override {
    ranks_.send(name, member(to), data);
  }
  void receive(const std::string& name, int from, std::span<std::byte> data) override {
    ranks_.receive(name, member(from), data);
  }
  void start(const std::string& name, const std::function<void()>& work) override { ranks_.start(name, work); }
  void wait(const std::string& name) override { ranks_.wait(name); }
  void drain() noexcept override { ranks_.drain(); }
  void leave(const std::string& reason) noexcept override { ranks_.leave(reason); }

 private:
  int member(int rank) const { return members_.at(static_cast<size_t>(rank)); }

  Collectives& ranks_;
  std::vector<int> members_;
  int rank_;
  std::unique_ptr<RankGroup> data_;
};

// This rank's group of `size` consecutive ranks, with the ranks of its number in all groups as their axis "data".
std::unique_ptr<RankGroup> group_of(Collectives* ranks, int size);

}  // namespace onnx_train
