// Ranks over MPI: a program of its own, of which mpirun starts three processes. It initializes MPI itself, as a program
// does that uses MPI for something else, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/mpi/mpi_ranks.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_checks.h"

namespace onnx_train {
namespace {

using testing::HasSubstr;

int number_of_world(int (*f)(MPI_Comm, int*)) {
  int number = 0;
  f(MPI_COMM_WORLD, &number);
  return number;
}

Deadline in_seconds(int seconds) { return std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

RankPlace own_place() { return {.rank = number_of_world(MPI_Comm_rank), .size = number_of_world(MPI_Comm_size)}; }

class MpiRanksTest : public testing::Test {
 protected:
  void SetUp() override {
    int provided = 0;
    MPI_Query_thread(&provided);
    if (provided != MPI_THREAD_MULTIPLE) GTEST_SKIP() << "MPI serves one thread";
    if (own_place().size != 3) GTEST_SKIP() << "this is for three processes: mpirun -np 3 mpi_tests";
    ranks = std::make_unique<MpiRanks>(MpiLink::connect(own_place(), in_seconds(60), {}));
  }

  std::unique_ptr<MpiRanks> ranks;
};

TEST_F(MpiRanksTest, EachGetsWhatEachSends) {
  EXPECT_EQ(ranks->transport(), "MPI");
  expect_exchanges(ranks.get());
}

TEST_F(MpiRanksTest, MessagesWaitForNoReceiver) { expect_messages(ranks.get(), 12'000'000); }

// More than a parcel has room for: MPI_Ialltoallw.
TEST_F(MpiRanksTest, ExchangesOfManyBytes) {
  const auto bytes = [](int r) { return static_cast<std::byte>(r + 7); };
  const int next = (ranks->rank() + 1) % 3, before = (ranks->rank() + 2) % 3;
  std::vector<std::byte> sent(60'000'005, bytes(ranks->rank())), got(sent.size());
  std::vector<std::span<const std::byte>> out(3);
  std::vector<std::span<std::byte>> in(3);
  out[static_cast<size_t>(next)] = sent;
  in[static_cast<size_t>(before)] = got;
  ranks->exchange("a ring", out, in);
  EXPECT_TRUE(got == std::vector<std::byte>(got.size(), bytes(before)));
}

// Without rank 1 or 2, beside an exchange and a sum of all: first with few bytes, then with a communicator that is
// kept.
TEST_F(MpiRanksTest, SomeRanksExchange) {
  for (const auto& [other, size] : {std::pair(2, 3u), {2, 100'000u}, {1, 100'000u}, {2, 100'000u}}) {
    const std::vector<int> sent(size, ranks->rank());
    std::vector<int> first(size, -1), second(size, -1);
    const auto out = std::as_bytes(std::span(sent));
    if (ranks->rank() == 0 || ranks->rank() == other) {
      ranks->exchange_among({0, other}, "two of three", {out, out},
                            {std::as_writable_bytes(std::span(first)), std::as_writable_bytes(std::span(second))});
      EXPECT_EQ(first, std::vector<int>(size, 0));
      EXPECT_EQ(second, std::vector<int>(size, other));
    }
    std::vector<float> sum(size, 1);
    EXPECT_TRUE(
        ranks->sum("ones", DType::kFloat, std::as_bytes(std::span(sum)), std::as_writable_bytes(std::span(sum))));
    EXPECT_EQ(sum, std::vector<float>(size, 3));
    EXPECT_EQ(ranks->gather("a number", 4), std::vector<uint32_t>(3, 4));
  }
}

template <typename T>
void expect_sum(Collectives* ranks, DType type, size_t size) {
  std::vector<T> data(size, static_cast<T>(1 + ranks->rank())), sum(size, T(6)), got(size);
  if (size > 0) data.back() = T(-0.25), sum.back() = T(-0.75);
  const auto in_place = std::as_writable_bytes(std::span(data));
  EXPECT_TRUE(ranks->sum("gradients", type, in_place, std::as_writable_bytes(std::span(got))));
  EXPECT_EQ(got, sum);
  EXPECT_TRUE(ranks->sum("gradients", type, in_place, in_place));
  EXPECT_EQ(data, sum);
}

TEST_F(MpiRanksTest, MpiAddsUpFloatsAndDoubles) {
  for (const size_t size : {0u, 1u, 1'000'003u}) {
    expect_sum<float>(ranks.get(), DType::kFloat, size);
    expect_sum<double>(ranks.get(), DType::kDouble, size);
  }
  ranks->start("a sum", [&] { expect_sum<float>(ranks.get(), DType::kFloat, 100); });
  ranks->wait("a sum");
}

TEST_F(MpiRanksTest, MpiHasNoSumOfHalves) {
  std::vector<std::byte> data(4, std::byte{1});
  for (const DType type : {DType::kBFloat16, DType::kFloat16, DType::kInt64})
    EXPECT_FALSE(ranks->sum("gradients", type, data, data));
  EXPECT_EQ(data, std::vector<std::byte>(4, std::byte{1}));
}

TEST_F(MpiRanksTest, SumsOfOtherSizesAreAnError) {
  std::vector<float> data(1000 + static_cast<size_t>(ranks->rank() == 2));
  const auto bytes = std::as_writable_bytes(std::span(data));
  const std::string error = error_of([&] { ranks->sum("gradients", DType::kFloat, bytes, bytes); });
  EXPECT_THAT(error, HasSubstr("give all ranks the same command"));
  ranks->leave(error);
}

// Rank 2 sends rank 0 less than it waits for, and is well met with rank 1, which is in MPI's collective then.
TEST_F(MpiRanksTest, OneOfAnotherSizeEndsACollectiveThatOthersHaveBegun) {
  const size_t size = 100'000;
  const auto rank = static_cast<size_t>(ranks->rank());
  std::vector<std::byte> data(size), got(3 * size);
  std::vector<std::span<const std::byte>> out(3, data);
  std::vector<std::span<std::byte>> in;
  for (size_t r = 0; r < 3; ++r) in.push_back(std::span(got).subspan(r * size, size));
  if (rank == 2) out[0] = out[0].first(size - 1);
  const std::string error = error_of([&] { ranks->exchange("an exchange", out, in); });
  EXPECT_THAT(error, HasSubstr("rank 2 is at another place than rank 0, which is at an exchange"));
  ranks->leave(error);
}

// Two are at an exchange without the third, which waits for both at another one.
TEST_F(MpiRanksTest, OtherMembersAreAnError) {
  std::vector<std::byte> data(100'000), got(data.size());
  const std::string error = error_of([&] {
    if (ranks->rank() == 1) ranks->gather("a number", 1);
    ranks->exchange_among({0, 2}, "two of three", {data, data}, {got, got});
    ranks->gather("another number", 1);
  });
  EXPECT_THAT(error, HasSubstr("give all ranks the same command"));
  ranks->leave(error);
}

// As one of more bytes than MPI counts, in blocks of 1000.
TEST_F(MpiRanksTest, ATypeOfManyBlocksIsASpan) {
  std::vector<std::byte> sent(12'345), got(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i % 251);
  MPI_Datatype from = type_of(sent, 1000), to = type_of(got, 1000);
  MPI_Sendrecv(MPI_BOTTOM, 1, from, 0, 0, MPI_BOTTOM, 1, to, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
  EXPECT_EQ(got, sent);
}

TEST_F(MpiRanksTest, StartedWorkExchangesOnAThreadOfItsOwn) {
  const int next = (ranks->rank() + 1) % 3, before = (ranks->rank() + 2) % 3;
  std::vector<uint32_t> numbers;
  ranks->start("numbers", [&] { numbers = ranks->gather("a number", static_cast<uint32_t>(ranks->rank())); });
  ranks->wait("numbers");
  EXPECT_EQ(numbers, (std::vector<uint32_t>{0, 1, 2}));
  std::array<std::byte, 4> sent{std::byte{1}}, got{};
  ranks->send("four", next, sent);
  ranks->receive("four", before, got);
  EXPECT_EQ(got, sent);
}

// A rank that computes has begun to send more than MPI delivers without its help.
TEST_F(MpiRanksTest, WhatIsSentArrivesWhileTheSenderComputes) {
  std::vector<std::byte> data(20'000'000, std::byte{5}), got(data.size());
  const auto begin = std::chrono::steady_clock::now();
  if (ranks->rank() == 0) {
    ranks->send("data", 1, data);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900));
    std::this_thread::sleep_for(std::chrono::seconds(3));
  } else if (ranks->rank() == 1) {
    ranks->receive("data", 0, got);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2500));
    EXPECT_TRUE(got == data);
  }
  ranks->end();
}

TEST_F(MpiRanksTest, WhoWaitsTakesLittleOfACore) {
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  ranks->gather("the start", 0);
  if (ranks->rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  const double before = used();
  ranks->gather("the end", 0);
  EXPECT_LT(used() - before, 0.6) << "seconds of a core, in two seconds";
}

TEST_F(MpiRanksTest, WhoWaitsForAMessageHearsWhyThereIsNone) { expect_a_reason_for_no_message(ranks.get()); }

TEST_F(MpiRanksTest, ARankThatLeavesSaysWhy) { expect_a_reason_for_leaving(ranks.get()); }

TEST_F(MpiRanksTest, RanksAtDifferentPlacesAreAnError) { expect_an_error_at_different_places(ranks.get()); }

TEST_F(MpiRanksTest, ARankThatEndsWithoutAWordIsGone) {
  if (ranks->rank() == 2) return ranks.reset();
  const std::string error = error_of([&] { ranks->gather("a number", 1); });
  EXPECT_THAT(error, HasSubstr("rank 2 ("));
  EXPECT_THAT(error, HasSubstr(") is gone"));
  ranks->leave(error);
}

TEST_F(MpiRanksTest, ARankThatIsSilentIsGone) {
  ranks.reset();
  const auto link = MpiLink::connect(own_place(), in_seconds(60), {}, std::chrono::milliseconds(1500));
  if (own_place().rank == 1) return link->close(false);  // as one that is killed
  MpiRanks others(link);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of([&] { others.receive("a message", 1, {}); }), HasSubstr(") is gone"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  others.leave("the others are told");
}

TEST_F(MpiRanksTest, RanksThatAreNotThoseOfMpi) {
  const RankPlace place{.rank = own_place().rank, .size = 7};
  EXPECT_THAT(error_of([&] { MpiLink::connect(place, in_seconds(60), {}); }),
              HasSubstr("of 3, and the environment says rank"));
}

TEST(MpiThreads, AnMpiForOneThreadIsRefused) {
  int provided = 0;
  MPI_Query_thread(&provided);
  if (provided == MPI_THREAD_MULTIPLE) GTEST_SKIP() << "MPI serves several threads; set MPI_TESTS_ONE_THREAD";
  EXPECT_THAT(error_of([&] { MpiLink::connect(own_place(), in_seconds(60), {}); }),
              HasSubstr("ask for it in MPI_Init_thread, or take the transport tcp"));
}

}  // namespace
}  // namespace onnx_train

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, std::getenv("MPI_TESTS_ONE_THREAD") ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE,
                  &provided);
  const int status = RUN_ALL_TESTS();
  MPI_Finalize();
  return status;
}
