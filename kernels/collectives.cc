#include "kernels/collectives.h"

#include <numeric>
#include <thread>

#include "kernels/kernel.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

int rank_of(const NodeSpec& spec, const char* attribute) {
  const int64_t rank = spec.node().attr(attribute, 0);
  if (rank < 0 || rank >= spec.collectives()->size())
    fail("'", attribute, "' is rank ", rank, ", and there are ", spec.collectives()->size());
  return static_cast<int>(rank);
}

bool has_one_number_before(const NodeSpec& spec) { return spec.in_size(0) == 1 && spec.out_size() != 1; }

// In one order on all ranks, since some wait for each other when they end.
Collectives::~Collectives() {
  while (!attachments.empty()) attachments.erase(attachments.begin());
}

void Collectives::exchange(const std::string& what, const std::vector<std::span<const std::byte>>& out,
                           const std::vector<std::span<std::byte>>& in) {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  exchange_among(all, what, out, in);
}

void Collectives::start(const std::string&, const std::function<void()>& work) { work(); }

void Collectives::check() {
  check_ranks();
  for (const auto& [name, attachment] : attachments) attachment->check();
}

void Collectives::abort() noexcept {
  std::vector<std::thread> threads;
  for (const auto& [name, attachment] : attachments) {
    try {
      threads.emplace_back([&to_end = *attachment] { to_end.abort(); });
    } catch (const std::exception&) {  // there is no thread, or no memory for one
      attachment->abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<uint32_t> Collectives::gather(const std::string& what, uint32_t number) {
  std::vector<uint32_t> numbers(static_cast<size_t>(size()));
  std::vector<std::span<std::byte>> in;
  for (uint32_t& other : numbers) in.push_back(std::as_writable_bytes(std::span(&other, 1)));
  exchange(what, std::vector(numbers.size(), std::as_bytes(std::span<const uint32_t>(&number, 1))), in);
  return numbers;
}

}  // namespace onnx_train
