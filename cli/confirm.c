// Asks a yes-or-no question on the terminal. See confirm.h.
#include "cli/confirm.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

bool mlx_cli_can_ask(void) { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

bool mlx_cli_ask(const char *question) {
  char answer[16] = "";
  fprintf(stderr, "%s [y/N] ", question);
  fflush(stderr);
  if (!fgets(answer, sizeof answer, stdin)) fputc('\n', stderr);  // end of input is a no
  answer[strcspn(answer, "\r\n")] = 0;
  return !strcasecmp(answer, "y") || !strcasecmp(answer, "yes");
}
