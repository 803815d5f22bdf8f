// A build without the chat page.
#include "server/page.h"

const mlx_page_file_t mlx_page_files[] = {{0}};
