// Connections between ranks, which are threads here.
#include "runtime/distribution/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <numeric>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/store.h"
#include "tests/support/error_of.h"
#include "tests/support/scoped_variable.h"

namespace onnx_train {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

Deadline in_seconds(int seconds) { return std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

int free_port() { return Socket::listen(0).port(); }

// Runs f on each rank in a thread of its own.
void with_ranks(int size, const std::function<void(std::unique_ptr<Collectives>)>& f) {
  const int port = free_port();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back(
        [&, r] { f(connect_ranks({.rank = r, .size = size, .address = "127.0.0.1", .port = port}, in_seconds(20))); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank a sends rank b `count(a, b)` numbers that tell both.
int64_t count(int a, int b) { return 1000 * a + 100'000 * b; }

TEST(Ranks, EachGetsWhatEachSends) {
  with_ranks(4, [](std::unique_ptr<Collectives> c) {
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<int>> sent, got;
      std::vector<std::span<const std::byte>> out;
      std::vector<std::span<std::byte>> in;
      for (int r = 0; r < 4; ++r) {
        sent.emplace_back(count(c->rank(), r), 10 * c->rank() + r + round);
        got.emplace_back(count(r, c->rank()));
      }
      for (int r = 0; r < 4; ++r) {
        out.push_back(std::as_bytes(std::span<const int>(sent[static_cast<size_t>(r)])));
        in.push_back(std::as_writable_bytes(std::span(got[static_cast<size_t>(r)])));
      }
      c->exchange("a test", out, in);
      for (int r = 0; r < 4; ++r)
        EXPECT_EQ(got[static_cast<size_t>(r)], std::vector<int>(count(r, c->rank()), 10 * r + c->rank() + round));
    }
    EXPECT_EQ(c->gather("a number", static_cast<uint32_t>(5 * c->rank())), (std::vector<uint32_t>{0, 5, 10, 15}));
  });
}

// Both send more than a connection holds before they receive, and in another order.
TEST(Ranks, MessagesWaitForNoReceiver) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) {
    const auto numbers = [](int from, int to, int i) { return std::vector<int>(3'000'000, 100 * from + 10 * to + i); };
    const auto name = [](int i) { return concat("message ", i); };
    for (int to = 0; to < 3; ++to) {
      for (int i = 0; i < 2 && to != c->rank(); ++i) {
        const std::vector<int> sent = numbers(c->rank(), to, i);
        c->send(name(i), to, std::as_bytes(std::span<const int>(sent)));
      }
    }
    c->send("nothing", (c->rank() + 1) % 3, {});
    for (int from = 2; from >= 0; --from) {
      for (int i = 1; i >= 0 && from != c->rank(); --i) {
        std::vector<int> got(3'000'000);
        c->receive(name(i), from, std::as_writable_bytes(std::span(got)));
        EXPECT_TRUE(got == numbers(from, c->rank(), i));
      }
    }
    c->receive("nothing", (c->rank() + 2) % 3, {});
    EXPECT_EQ(c->gather("a number", static_cast<uint32_t>(c->rank())), (std::vector<uint32_t>{0, 1, 2}));
  });
}

TEST(Ranks, WhoWaitsForAMessageHearsWhyThereIsNone) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) {
    std::array<std::byte, 4> four{};
    if (c->rank() == 0) c->send("short", 1, std::span(four).first(3));
    if (c->rank() == 2) return c->leave("there is no data");
    const int from = c->rank() == 0 ? 2 : 0;
    const std::string error = error_of([&] { c->receive("short", from, four); });
    EXPECT_THAT(error, HasSubstr(c->rank() == 0 ? "rank 2 has ended: there is no data" : "sends 3 bytes of short"));
    EXPECT_EQ(error_of([&] { c->send("short", from, four); }), error);
    c->leave(error);
  });
}

TEST(Ranks, ARankThatLeavesSaysWhy) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) {
    if (c->rank() == 1) return c->leave("its labels are out of range");
    const std::string error = error_of([&] { c->gather("a number", 1); });
    EXPECT_EQ(error, "rank 1 has ended: its labels are out of range");
    EXPECT_EQ(error_of([&] { c->gather("a number", 1); }), error);
    c->leave("something else");
  });
}

TEST(Ranks, ARankThatIsGoneIsNamedByAll) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) {
    if (c->rank() == 2) return;  // without a word
    const std::string error = error_of([&] { c->gather("a number", 1); });
    EXPECT_THAT(error, HasSubstr("rank 2 (127.0.0.1) is gone"));
    c->leave(error);
  });
}

TEST(Ranks, RanksAtDifferentPlacesAreAnError) {
  with_ranks(2, [](std::unique_ptr<Collectives> c) {
    const std::string error = error_of([&] { c->gather(c->rank() == 0 ? "node a" : "node b", 1); });
    EXPECT_THAT(error, HasSubstr("give all ranks the same command"));
    c->leave(error);
  });
}

TEST(Ranks, AMissingRankIsNamed) {
  const RankPlace place{.rank = 0, .size = 3, .address = "127.0.0.1", .port = free_port()};
  const std::string error = error_of([&] { connect_ranks(place, in_seconds(0)); });
  EXPECT_THAT(error, HasSubstr("for rank 1, 2, which does not connect"));
}

TEST(Ranks, WhoWaitsSaysForWhom) {
  const int port = free_port();
  std::string said;
  std::thread first([&] {
    connect_ranks({.rank = 0, .size = 2, .port = port}, in_seconds(30), [&](const std::string& text) { said = text; });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  connect_ranks({.rank = 1, .size = 2, .port = port}, in_seconds(20));
  first.join();
  EXPECT_THAT(said, HasSubstr("rank 0 waits on port"));
}

// What knocks at the port and is no rank changes nothing.
TEST(Ranks, StrangersAreLeftAlone) {
  const int port = free_port();
  std::thread stranger([&] {
    for (const char* text : {"GET / HTTP/1.1\r\n\r\n........................", "short"}) {
      const Socket socket = Socket::connect("127.0.0.1", port, in_seconds(20));
      socket.send(text, strlen(text), in_seconds(1));
    }
  });
  std::unique_ptr<Collectives> leader;
  std::thread first([&] { leader = connect_ranks({.rank = 0, .size = 2, .port = port}, in_seconds(20)); });
  stranger.join();
  const auto other = connect_ranks({.rank = 1, .size = 2, .port = port}, in_seconds(20));
  first.join();
  std::thread says([&] { EXPECT_EQ(leader->gather("a number", 1), (std::vector<uint32_t>{1, 2})); });
  EXPECT_EQ(other->gather("a number", 2), (std::vector<uint32_t>{1, 2}));
  says.join();
}

// ---- The environment

class RankPlaceTest : public testing::Test {
 protected:
  void set(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) set_.push_back(std::make_unique<ScopedVariable>(name, value));
  }

 private:
  std::vector<std::unique_ptr<ScopedVariable>> set_;
};

TEST_F(RankPlaceTest, OneProcessHasNone) {
  EXPECT_FALSE(rank_place_of_environment());
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_FALSE(rank_place_of_environment());
}

TEST_F(RankPlaceTest, Torchrun) {
  set({{"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "node1"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const auto place = rank_place_of_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 5);
  EXPECT_EQ(place->size, 8);
  EXPECT_EQ(place->local_rank, 1);
  EXPECT_EQ(place->local_size, 4);
  EXPECT_EQ(place->address, "node1");
  EXPECT_EQ(place->port, 29500);
  EXPECT_TRUE(place->has_store);
  EXPECT_THAT(place->run, HasSubstr("2"));
}

TEST_F(RankPlaceTest, MpirunOnOneMachine) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
       {"PMIX_NAMESPACE", "prterun-host-7"}});
  const auto place = rank_place_of_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->address, "127.0.0.1");
  EXPECT_GE(place->port, 20000);
  EXPECT_FALSE(place->has_store);
}

TEST_F(RankPlaceTest, Srun) {
  set({{"SLURM_PROCID", "3"},
       {"SLURM_STEP_NUM_TASKS", "4"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_STEP_NODELIST", "gpu[03-04,17]"}});
  const auto place = rank_place_of_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->rank, 3);
  EXPECT_EQ(place->address, "gpu03");
}

TEST_F(RankPlaceTest, NumbersThatAreNone) {
  set({{"RANK", "two"}, {"WORLD_SIZE", "2"}});
  EXPECT_THAT(error_of([] { rank_place_of_environment(); }), HasSubstr("RANK=two"));
  set({{"RANK", "2"}});
  EXPECT_THAT(error_of([] { rank_place_of_environment(); }), HasSubstr("a number from 0 to 1"));
}

TEST_F(RankPlaceTest, SeveralMachinesNeedAnAddress) {
  set({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(error_of([] { rank_place_of_environment(); }), HasSubstr("set MASTER_ADDR"));
}

}  // namespace
}  // namespace onnx_train
