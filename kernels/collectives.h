// What the processes of one training do together: each is a rank, numbered from 0. All ranks call the same functions in
// the same order. The caller owns the object and uses it from one thread at a time. Functions block, but for `start`,
// and throw Error that names the rank that is gone, after which every call throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "onnx_passes/ir/types.h"

namespace onnx_train {

// What a device connects for the ranks: their GPUs.
class Attachment {
 public:
  virtual ~Attachment() = default;
  // Throws Error where it has failed.
  virtual void check() = 0;
  // Ends the work that waits for other ranks, and lets later work fail.
  virtual void abort() noexcept = 0;
};

class NodeSpec;

// Of AllReduce and Reduce: whether the sum before, their x, is one number for all elements.
bool has_one_number_before(const NodeSpec& spec);

// The rank that an attribute of a collective names: "root", "from", "to". Throws Error where there is no such rank.
int rank_of(const NodeSpec& spec, const char* attribute);
inline int root_of(const NodeSpec& spec) { return rank_of(spec, "root"); }

class Collectives {
 public:
  virtual ~Collectives();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What carries the bytes, for people: "Gloo", "MPI"; "" where nothing does.
  virtual std::string transport() const { return ""; }
  // All ranks, where these are some of them: they have the attachments. And the number among them of rank `rank`.
  virtual Collectives& all() { return *this; }
  virtual int number(int rank) const { return rank; }
  // Sends out[r] to rank r and fills in[r] with what rank r sends to this one; both sides know the sizes. Those of this
  // rank itself are copied. `what` names the exchange: Error if another rank is at one of another name or size.
  void exchange(const std::string& what, const std::vector<std::span<const std::byte>>& out,
                const std::vector<std::span<std::byte>>& in);
  // As `exchange`, between some ranks: `members` are their numbers in ascending order, this one's among them, and out
  // and in have an entry for each.
  virtual void exchange_among(const std::vector<int>& members, const std::string& what,
                              const std::vector<std::span<const std::byte>>& out,
                              const std::vector<std::span<std::byte>>& in) = 0;
  // y = the sum of the ranks' z, elements of this type, in an order of the engine's own, which is the same on all
  // ranks. Whether the engine has such a sum; where it has none, nothing has happened, on any rank.
  virtual bool sum(const std::string& /*what*/, DType /*type*/, std::span<const std::byte> /*z*/,
                   std::span<std::byte> /*y*/) {
    return false;
  }
  // The ranks that a collective means whose attribute `mesh_axis` is this, where ranks are a mesh.
  virtual Collectives* along(const std::string& /*axis*/) { return this; }
  // Gives a copy of `data` to rank `to`, and returns before it has arrived. What ranks send each other is told apart by
  // its name alone; one name is sent again only after it was received.
  virtual void send(const std::string& name, int to, std::span<const std::byte> data) = 0;
  // Waits for what rank `from` sends under this name. Error if it has another size.
  virtual void receive(const std::string& name, int from, std::span<std::byte> data) = 0;
  // Begins work that exchanges, under a name, and may return before it is done. It comes after what was started before
  // and before what is exchanged later, so that the order stays that of the calls. The memory that it uses must stay.
  virtual void start(const std::string& name, const std::function<void()>& work);
  // Waits for the work of this name that was started last. Throws what it has thrown.
  virtual void wait(const std::string&) {}
  // Waits for all work that was started, also where it fails.
  virtual void drain() noexcept {}
  // The ranks' numbers.
  std::vector<uint32_t> gather(const std::string& what, uint32_t number);
  // Throws Error where a rank is known to be gone, or an attachment has failed; else returns at once.
  void check();
  // Ends the work of devices that waits for other ranks, that of all attachments at once: one may wait for another.
  void abort() noexcept;
  // When this rank has done its part: waits until all have, so that none takes the end of another for a failure. Throws
  // Error where one has failed.
  void end() { gather("the end of the run", 0); }
  // Tells the others why this rank ends. Never throws; a rank that ends without a word is gone for an unknown reason.
  virtual void leave(const std::string& reason) noexcept = 0;
  // When this rank has failed.
  void give_up(const std::string& reason) noexcept {
    leave(reason);
    abort();
  }

  std::map<std::string, std::shared_ptr<Attachment>> attachments;  // by name

 protected:
  // Throws Error where a rank is known to be gone.
  virtual void check_ranks() {}
};

}  // namespace onnx_train
