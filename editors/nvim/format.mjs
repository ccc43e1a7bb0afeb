// Formats the plugin's Lua with StyLua; --check only says which files would change.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import * as stylua from "@johnnymorganz/stylua";

/** A call of formatCode takes its configuration away. */
function config() {
  const config = stylua.Config.new();
  config.column_width = 100;
  config.indent_type = stylua.IndentType.Spaces;
  config.indent_width = 2;
  config.quote_style = stylua.QuoteStyle.AutoPreferDouble;
  return config;
}

const isCheck = process.argv.includes("--check");
for (const folder of ["plugin", "lsp", "lua/completion_ls"]) {
  for (const name of readdirSync(folder)) {
    const file = `${folder}/${name}`;
    const before = readFileSync(file, "utf8");
    const after = stylua.formatCode(before, config(), undefined, stylua.OutputVerification.None);
    if (after !== before) {
      console.error(isCheck ? `${file} is not formatted: npm run format` : file);
      process.exitCode = isCheck ? 1 : 0;
      if (!isCheck) {
        writeFileSync(file, after);
      }
    }
  }
}
