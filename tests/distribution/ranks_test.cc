// Connections between ranks, which are threads here.
#include "runtime/distribution/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "onnx_passes/ir/error.h"
#include "runtime/distribution/connected_ranks.h"
#include "runtime/distribution/rank_messages.h"
#include "runtime/distribution/store.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_checks.h"
#include "tests/support/scoped_variable.h"

namespace onnx_train::ranks_test {
namespace {

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

TEST(Ranks, EachGetsWhatEachSends) {
  with_ranks(4, [](std::unique_ptr<Collectives> c) { expect_exchanges(c.get()); });
}

// More than a connection holds.
TEST(Ranks, MessagesWaitForNoReceiver) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) { expect_messages(c.get(), 12'000'000); });
}

TEST(Ranks, WhoWaitsForAMessageHearsWhyThereIsNone) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) { expect_a_reason_for_no_message(c.get()); });
}

TEST(Ranks, ARankThatLeavesSaysWhy) {
  with_ranks(3, [](std::unique_ptr<Collectives> c) { expect_a_reason_for_leaving(c.get()); });
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
  with_ranks(2, [](std::unique_ptr<Collectives> c) { expect_an_error_at_different_places(c.get()); });
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

// The error of a rank to which another one sends a header and some bytes, and then no more, when it waits for a message
// or exchanges.
std::string error_after(const RankHeader& header, bool exchanges) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return "no sockets";
  const Socket other(ends[0]);
  other.send(&header, sizeof(header), in_seconds(5));
  other.send("part", 4, in_seconds(5));
  shutdown(other.fd(), SHUT_WR);
  std::vector<Socket> peers(2);
  peers[1] = Socket(ends[1]);
  const auto ranks = connected_ranks(0, std::move(peers));
  std::array<std::byte, 4> data{}, own{};
  return error_of([&] { exchanges ? ranks->exchange("a", {own, data}, {own, data}) : ranks->receive("a", 1, data); });
}

// A length costs nothing: memory is asked for as bytes come.
TEST(Ranks, AMessageThatDoesNotComeTakesNoMemory) {
  EXPECT_THAT(error_after({RankHeader::kMessage, 0, uint64_t{1} << 62}, false), HasSubstr("is gone"));
}

TEST(Ranks, ARankThatEndsWithoutAReasonEndsTheOthers) {
  for (const uint32_t kind : {RankHeader::kLeaves, RankHeader::kForwards}) {
    for (const bool exchanges : {false, true}) {
      EXPECT_EQ(error_after({kind, 0, 0}, exchanges), "rank 1 has ended, and does not say why");
    }
  }
}

// ---- The transport. Beside this program there are no modules.

TEST(Ranks, WithoutTheModuleForMpiTheyTakeTcp) {
  const RankPlace place{.rank = 0, .size = 1, .port = free_port(), .launcher = "mpirun"};
  EXPECT_EQ(connect_ranks(place, in_seconds(1))->transport(), "TCP");
}

TEST(Ranks, MpiThatCannotBeSaysWhatToDo) {
  RankPlace place{.rank = 0, .size = 2, .launcher = "mpirun", .transport = Transport::kMpi};
  EXPECT_THAT(error_of([&] { connect_ranks(place, in_seconds(0)); }),
              HasSubstr("is not in this installation: build it"));
  place.launcher = "torchrun";
  EXPECT_EQ(error_of([&] { connect_ranks(place, in_seconds(0)); }),
            "the transport 'mpi' is for processes that mpirun starts, and torchrun has started these: start them with "
            "mpirun, or take tcp");
}

// ---- The environment

class RankPlaceTest : public testing::Test {
 protected:
  // The last one first: one that was set twice is then as it was.
  void TearDown() override {
    while (!set_.empty()) set_.pop_back();
  }

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

TEST_F(RankPlaceTest, TheTransport) {
  set({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(rank_place_of_environment()->transport, Transport::kAuto);
  set({{"ONNX_TRAIN_TRANSPORT", "mpi"}});
  EXPECT_EQ(rank_place_of_environment()->transport, Transport::kMpi);
  set({{"ONNX_TRAIN_TRANSPORT", "ftp"}});
  EXPECT_EQ(error_of([] { rank_place_of_environment(); }),
            "ONNX_TRAIN_TRANSPORT is 'ftp'; it must be auto, tcp or mpi");
}

// Over TCP. Over MPI, MPI knows where they are.
TEST_F(RankPlaceTest, SeveralMachinesNeedAnAddress) {
  set({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(error_of([] { connect_ranks(*rank_place_of_environment(), in_seconds(0)); }),
              HasSubstr("set MASTER_ADDR"));
}

}  // namespace
}  // namespace onnx_train::ranks_test
