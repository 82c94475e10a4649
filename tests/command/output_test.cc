#include "tools/report/output.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace onnx_train::output_test {
namespace {

// What `write` leaves in a file that is stdout and stderr at once, as with `> log 2>&1`.
template <typename Write>
std::string on_one_file(Write&& write) {
  const std::string path = testing::TempDir() + "one_file";
  std::filesystem::create_directories(testing::TempDir());
  std::fflush(stdout);
  const int out = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO);
  const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  write();
  std::fflush(stdout);
  dup2(out, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  for (int descriptor : {out, errors, file}) close(descriptor);
  std::ifstream read(path);
  return {std::istreambuf_iterator<char>(read), {}};
}

TEST(Output, LinesOfBothStreamsComeInTheirOrder) {
  const std::string text = on_one_file([] {
    std::printf("a table\n");
    print_error("an error");
    print("a line\n");
    print_error("another\nerror\x1b[2J");
  });
  EXPECT_EQ(text, "a table\nan error\na line\nanother error [2J\n");
}

TEST(Output, NothingIsPrintedIntoAStatusLine) {
  const std::string clear = "\r\x1b[K";
  const std::string text = on_one_file([] {
    show_status("1/3");
    show_status("2/3");
    print("epoch 1\n");
    show_status("3/3");
    print_error("the loss is nan");
    show_status("again");
    keep_status();
    keep_status();
    print("done\n");
  });
  EXPECT_EQ(text, clear + "1/3" + clear + "2/3" + clear + "epoch 1\n" + clear + "3/3\nthe loss is nan\n" + clear +
                      "again\ndone\n");
}

TEST(Output, LinesOfSeveralThreadsStayWhole) {
  const std::string line(5000, 'x');
  const std::string text = on_one_file([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) t % 2 == 0 ? print(line + "\n") : print_error(line);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::istringstream lines(text);
  int count = 0;
  for (std::string read; std::getline(lines, read); ++count) ASSERT_EQ(read, line);
  EXPECT_EQ(count, 200);
}

}  // namespace
}  // namespace onnx_train::output_test
