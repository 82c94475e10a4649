#include "tests/support/rank_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "onnx_passes/ir/error.h"
#include "tests/support/error_of.h"

namespace onnx_train {
namespace {

using testing::HasSubstr;

// Rank a sends rank b `count(a, b)` numbers that tell both.
int64_t count(int a, int b) { return 1000 * a + 100'000 * b; }

void expect_numbers(Collectives* ranks) {
  std::vector<uint32_t> numbers(static_cast<size_t>(ranks->size()));
  std::iota(numbers.begin(), numbers.end(), 5);
  EXPECT_EQ(ranks->gather("a number", static_cast<uint32_t>(5 + ranks->rank())), numbers);
}

}  // namespace

void expect_exchanges(Collectives* ranks) {
  const int own = ranks->rank(), size = ranks->size();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<int>> sent, got;
    std::vector<std::span<const std::byte>> out;
    std::vector<std::span<std::byte>> in;
    for (int r = 0; r < size; ++r) {
      sent.emplace_back(count(own, r), 10 * own + r + round);
      got.emplace_back(count(r, own));
    }
    for (size_t r = 0; r < sent.size(); ++r) {
      out.push_back(std::as_bytes(std::span<const int>(sent[r])));
      in.push_back(std::as_writable_bytes(std::span(got[r])));
    }
    ranks->exchange("a test", out, in);
    for (int r = 0; r < size; ++r)
      EXPECT_EQ(got[static_cast<size_t>(r)], std::vector<int>(count(r, own), 10 * r + own + round));
  }
  expect_numbers(ranks);
}

void expect_messages(Collectives* ranks, size_t bytes) {
  const int own = ranks->rank(), size = ranks->size();
  const auto numbers = [&](int from, int to, int i) {
    return std::vector<int>(bytes / sizeof(int), 100 * from + 10 * to + i);
  };
  const auto name = [](int i) { return concat("message ", i); };
  for (int to = 0; to < size; ++to) {
    for (int i = 0; i < 2 && to != own; ++i) {
      const std::vector<int> sent = numbers(own, to, i);
      ranks->send(name(i), to, std::as_bytes(std::span<const int>(sent)));
    }
  }
  ranks->send("nothing", (own + 1) % size, {});
  for (int from = size - 1; from >= 0; --from) {
    for (int i = 1; i >= 0 && from != own; --i) {
      std::vector<int> got(bytes / sizeof(int));
      ranks->receive(name(i), from, std::as_writable_bytes(std::span(got)));
      EXPECT_TRUE(got == numbers(from, own, i));
    }
  }
  ranks->receive("nothing", (own + size - 1) % size, {});
  expect_numbers(ranks);
}

void expect_a_reason_for_no_message(Collectives* ranks) {
  std::array<std::byte, 4> four{};
  if (ranks->rank() == 0) ranks->send("short", 1, std::span(four).first(3));
  if (ranks->rank() == 2) return ranks->leave("there is no data");
  const int from = ranks->rank() == 0 ? 2 : 0;
  const std::string error = error_of([&] { ranks->receive("short", from, four); });
  EXPECT_THAT(error, HasSubstr(ranks->rank() == 0 ? "rank 2 has ended: there is no data" : "sends 3 bytes of short"));
  EXPECT_EQ(error_of([&] { ranks->send("short", from, four); }), error);
  ranks->leave(error);
}

void expect_a_reason_for_leaving(Collectives* ranks) {
  if (ranks->rank() == 1) return ranks->leave("its labels are out of range");
  const std::string error = error_of([&] { ranks->gather("a number", 1); });
  EXPECT_EQ(error, "rank 1 has ended: its labels are out of range");
  EXPECT_EQ(error_of([&] { ranks->gather("a number", 1); }), error);
  EXPECT_EQ(error_of([&] { ranks->check(); }), error);
  ranks->leave("something else");
}

void expect_an_error_at_different_places(Collectives* ranks) {
  const std::string error = error_of([&] { ranks->gather(concat("node ", ranks->rank()), 1); });
  EXPECT_THAT(error, HasSubstr("give all ranks the same command"));
  ranks->leave(error);
}

}  // namespace onnx_train
