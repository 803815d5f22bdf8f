// Chat formats: built-in chat templates by name. Part of the public interface: runtime/mlxcel.h includes it.
#ifndef MLXCEL_TEMPLATE_CHAT_FORMATS_H_
#define MLXCEL_TEMPLATE_CHAT_FORMATS_H_

#ifdef __cplusplus
extern "C" {
#endif

// The Jinja source of the format |name|, or NULL if the name is unknown.
const char *mlx_chat_format(const char *name);
// The names of all formats, NULL-terminated.
const char *const *mlx_chat_format_names(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MLXCEL_TEMPLATE_CHAT_FORMATS_H_
