// How a C++ peer takes part in `cargo xtask bench`: asked one line, it answers one line.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct Request {
  std::string participant, measure;
  std::map<std::string, std::string> arguments;

  uint64_t number(const std::string& key) const {
    auto found = arguments.find(key);
    if (found == arguments.end()) throw std::runtime_error("no " + key + " is given");
    return std::stoull(found->second);
  }
};

// Metrics with their values; what is no number was not measured and is left out.
using Figures = std::vector<std::pair<std::string, double>>;

// The peer cannot do what it was asked for.
struct Skip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::string quoted(const std::string& text) {
  std::string line = "\"";
  for (unsigned char character : text) {
    if (character == '"' || character == '\\') line += '\\';
    line += character < ' ' ? ' ' : static_cast<char>(character);
  }
  return line + '"';
}

inline void say(const std::string& what, const std::string& value) {
  std::cout << "{\"" << what << "\":" << value << "}" << std::endl;
}

inline Request parsed(const std::string& line) {
  std::istringstream words(line);
  Request request;
  words >> request.participant >> request.measure;
  for (std::string word; words >> word;) {
    auto equals = word.find('=');
    if (equals == std::string::npos) throw std::runtime_error("`" + word + "` is no key=value");
    request.arguments[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return request;
}

// Answers until the standard input ends.
template <class Answer>
int serve(const std::vector<std::pair<std::string, std::string>>& versions, Answer answer) {
  auto object = [](const auto& pairs, auto show) {
    std::string text;
    for (const auto& [key, value] : pairs) text += (text.empty() ? "" : ",") + quoted(key) + ":" + show(value);
    return "{" + text + "}";
  };
  say("ready", object(versions, quoted));
  for (std::string line; std::getline(std::cin, line);) {
    try {
      Figures figures = answer(parsed(line));
      std::erase_if(figures, [](const auto& figure) { return !std::isfinite(figure.second); });
      say("figures", object(figures, [](double value) {
            char digits[32];
            std::snprintf(digits, sizeof digits, "%.9e", value);
            return std::string(digits);
          }));
    } catch (const Skip& reason) {
      say("skip", quoted(reason.what()));
    } catch (const std::exception& error) {
      // The first line names it; PyTorch's go on with a backtrace.
      std::string text = error.what();
      say("error", quoted(text.substr(0, text.find('\n'))));
    }
  }
  return 0;
}
