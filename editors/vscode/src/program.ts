/** Where the `completion-ls` program is, and how it is got. */

import { execFile } from "node:child_process";
import * as fs from "node:fs/promises";
import * as os from "node:os";
import * as path from "node:path";
import { promisify } from "node:util";
import * as vscode from "vscode";

/** Not in the folder that the editor happens to run in: Python would take modules from there. */
const run = (program: string, args: string[]) =>
  promisify(execFile)(program, args, { cwd: os.homedir(), maxBuffer: 1 << 26 });
const WINDOWS = process.platform === "win32";
const NAME = WINDOWS ? "completion-ls.exe" : "completion-ls";
const BIN = WINDOWS ? "Scripts" : "bin";
/** Oldest Python that completion-ls runs on. */
const PYTHON = [3, 11] as const;

/** The program, by the first that is there of: the setting, the Python environment that is active, the
 * PATH, the private environment. */
export async function findProgram(
  setting: string,
  storage: vscode.Uri,
): Promise<string | undefined> {
  if (setting) {
    return atHome(setting);
  }
  const places = [
    await activeEnvironment(),
    ...(process.env["PATH"] ?? "").split(path.delimiter),
    path.join(privateEnvironment(storage), BIN),
  ];
  for (const place of places) {
    if (place && (await isProgram(path.join(place, NAME)))) {
      return path.join(place, NAME);
    }
  }
  return undefined;
}

/** Whether a program that was named or found is there. One without a folder is looked for in the PATH by
 * whoever starts it. */
export async function canStart(program: string): Promise<boolean> {
  return !path.isAbsolute(program) || isProgram(program);
}

/** Install completion-ls into an environment of this extension's own. Throws an Error whose message is a
 * sentence. */
export async function install(
  packageName: string,
  storage: vscode.Uri,
  output: vscode.OutputChannel,
): Promise<void> {
  const folder = privateEnvironment(storage);
  const python = await findPython();
  if (!python) {
    throw new Error(
      `No Python ${PYTHON.join(".")} or newer was found. Install one, or completion-ls itself, and name ` +
        "it in completion-ls.program.",
    );
  }
  await fs.mkdir(path.dirname(folder), { recursive: true });
  const steps: [string, string[]][] = [
    [python, ["-m", "venv", folder]],
    [path.join(folder, BIN, "python"), ["-m", "pip", "install", "--upgrade", atHome(packageName)]],
  ];
  for (const [program, args] of steps) {
    output.appendLine(`> ${program} ${args.join(" ")}`);
    try {
      const { stdout, stderr } = await run(program, args);
      output.append(stdout + stderr);
    } catch (error) {
      output.append(String(error));
      throw new Error(
        `completion-ls could not be installed into ${folder}; what pip said is in the output. The setting ` +
          "completion-ls.package may name a clone of its repository, or a wheel, to install instead.",
      );
    }
  }
}

/** `~` stands for the home folder. */
function atHome(name: string): string {
  return /^~(?=[/\\]|$)/.test(name) ? path.join(os.homedir(), name.slice(1)) : name;
}

function privateEnvironment(storage: vscode.Uri): string {
  return path.join(storage.fsPath, "environment");
}

/** The folder of programs of the environment that the Python extension has chosen. */
async function activeEnvironment(): Promise<string | undefined> {
  const python = vscode.extensions.getExtension("ms-python.python");
  // The environment may be a folder of the workspace, and its program anybody's.
  if (!python || !vscode.workspace.isTrusted) {
    return undefined;
  }
  try {
    const { ready, environments } = await python.activate();
    await ready; // before, it may not have chosen one
    const active = await environments.resolveEnvironment(environments.getActiveEnvironmentPath());
    const file: string | undefined = active?.executable?.uri?.fsPath;
    return file && path.dirname(file);
  } catch {
    return undefined; // another version of it, or none chosen
  }
}

async function findPython(): Promise<string | undefined> {
  const check = `import sys, venv; sys.exit(sys.version_info < (${PYTHON.join(", ")}))`;
  for (const name of WINDOWS ? ["py", "python"] : ["python3", "python"]) {
    try {
      await run(name, ["-c", check]);
      return name;
    } catch {
      continue;
    }
  }
  return undefined;
}

async function isProgram(file: string): Promise<boolean> {
  try {
    await fs.access(file, fs.constants.X_OK);
    return (await fs.stat(file)).isFile();
  } catch {
    return false;
  }
}
