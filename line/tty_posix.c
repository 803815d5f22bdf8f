// The POSIX terminal: termios modes, signals and input through ppoll.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/file.h"
#include "line/tty.h"

// Global, because signal handlers use them.
static struct termios saved_mode;
static const char *restore_text;
static bool mode_is_changed;
static volatile sig_atomic_t interrupted, resized;

static const int signals[5] = {SIGINT, SIGWINCH, SIGTERM, SIGHUP, SIGQUIT};
static struct sigaction saved_actions[5];

// ----------------------------------------------------------------------------------------------------------
// The mode

void mlx_tty_leave(void) {
  if (mode_is_changed) tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_mode);
  mode_is_changed = false;
}

void mlx_tty_enter(bool reading) {
  struct termios mode = saved_mode;
  mode.c_lflag &= (tcflag_t) ~(ECHO | ICANON);
  if (reading) {
    mode.c_lflag &= (tcflag_t) ~(ISIG | IEXTEN);
    mode.c_iflag &= (tcflag_t) ~(ICRNL | INLCR | IXON | ISTRIP | BRKINT);
  }
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  mode_is_changed = !tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
}

void mlx_tty_suspend(void) { raise(SIGTSTP); }

// ----------------------------------------------------------------------------------------------------------
// Signals

static void note_signal(int number) {
  if (number == SIGINT) interrupted = 1;
  if (number == SIGWINCH) resized = 1;
}

void mlx_tty_restore(void) {
  if (!mode_is_changed) return;
  (void)!write(STDERR_FILENO, restore_text, strlen(restore_text));
  tcsetattr(STDIN_FILENO, TCSANOW, &saved_mode);
}

// Restores the terminal before a signal ends the process.
static void end_by_signal(int number) {
  mlx_tty_restore();
  signal(number, SIG_DFL);
  raise(number);
}

mlx_status_t mlx_tty_open(const char *restore) {
  if (tcgetattr(STDIN_FILENO, &saved_mode)) return mlx_error(MLX_IO, "stdin is not a terminal");
  restore_text = restore;
  for (int i = 0; i < 5; ++i) {
    struct sigaction action = {.sa_handler = i < 2 ? note_signal : end_by_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signals[i], &action, &saved_actions[i]);
  }
  return NULL;
}

void mlx_tty_close(void) {
  mlx_tty_leave();
  for (int i = 0; i < 5; ++i) sigaction(signals[i], &saved_actions[i], NULL);
}

bool mlx_tty_take_interrupt(void) {
  const bool was = interrupted;
  interrupted = 0;
  return was;
}

// ----------------------------------------------------------------------------------------------------------
// Size and keys

bool mlx_tty_is_resized(void) { return resized; }

void mlx_tty_size(int *out_columns, int *out_rows) {
  struct winsize size = {0};
  resized = 0;
  const bool known = !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col && size.ws_row;
  *out_columns = known ? size.ws_col : 80;
  *out_rows = known ? size.ws_row : 24;
}

int mlx_tty_columns(int stream) {
  struct winsize size = {0};
  return ioctl(stream, TIOCGWINSZ, &size) ? 0 : size.ws_col;
}

bool mlx_tty_input_is_ready(int milliseconds) {
  struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
  return poll(&ready, 1, milliseconds) > 0 && ready.revents & (POLLIN | POLLHUP);
}

mlx_status_t mlx_tty_read(unsigned char *bytes, size_t size, size_t *out_length, bool *out_end) {
  sigset_t block, before;
  struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
  *out_length = 0;
  *out_end = false;
  sigemptyset(&block);
  sigaddset(&block, SIGWINCH);
  sigprocmask(SIG_BLOCK, &block, &before);  // a SIGWINCH must not arrive between the check and ppoll
  const int count = resized ? 0 : ppoll(&ready, 1, NULL, &before);
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (count <= 0) return count < 0 && errno != EINTR ? mlx_io_error("read", "the terminal") : NULL;
  const ssize_t got = read(STDIN_FILENO, bytes, size);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return NULL;
  *out_end = got <= 0;  // a closed terminal gives an error
  *out_length = got > 0 ? (size_t)got : 0;
  return NULL;
}
