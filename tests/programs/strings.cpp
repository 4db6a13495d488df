/* Sorts strings that begin alike: most of the time goes into comparing them, in libc. Takes the number of rounds. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

int main(int count, char **words) {
  unsigned random = 12345;
  unsigned long sum = 0;
  for (int round = count > 1 ? std::atoi(words[1]) : 10; round > 0; round--) {
    std::vector<std::string> strings;
    for (int i = 0; i < 20000; i++) {
      random = random * 1103515245 + 12345;
      strings.push_back("the same beginning of all: " + std::to_string(random >> 8));
    }
    std::sort(strings.begin(), strings.end());
    for (std::size_t i = 0; i < strings.size(); i += 1000)
      sum = sum * 31 + strings[i].back();
  }
  std::printf("%lu\n", sum);
}
