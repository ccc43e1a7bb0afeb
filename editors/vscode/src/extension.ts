/** Inline completion from a model on this machine: starts the server and shows what it suggests. */

import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { canStart, findProgram, install } from "./program";
import { Provider } from "./provider";
import { Server } from "./server";
import { MENU, offReason, showMenu, StatusBar } from "./status";

const SECTION = "completion-ls";

let server: Server | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("completion-ls", { log: true });
  const status = new StatusBar(async () => (await server?.figures()) ?? {});
  const provider = new Provider(
    context.extension.id,
    () => server?.active,
    (document) => offReason(document) !== "",
    () => status.refresh(),
  );
  server = new Server(output, {
    started: (client) => provider.listen(client),
    stopped: () => provider.reset(),
    state: (state) => status.change(state),
  });
  const found = () => findProgram(configured("program", ""), context.globalStorageUri);

  let starts = 0;
  const start = async (): Promise<void> => {
    const turn = ++starts;
    const program = await found();
    const isThere = program !== undefined && (await canStart(program));
    if (turn !== starts) {
      return; // a later one looks for the program as it is named now
    }
    if (isThere) {
      await server?.start(program);
      return;
    }
    await server?.stop();
    if (turn !== starts) {
      return;
    }
    status.change({ state: "failed", text: missing(program), percentage: 0 });
    await (program ? offerSetting(missing(program), "program") : offer());
  };

  // The message is shown each time, for one that was not answered may be out of sight.
  const offer = async (): Promise<void> => {
    const yes = "Install into a private environment";
    const name = "Name the program";
    const answer = await vscode.window.showWarningMessage(
      "The program completion-ls was not found: neither in the active Python environment nor in the PATH. " +
        "Installing it downloads PyTorch, too: up to several GB.",
      yes,
      name,
    );
    if (answer === name) {
      await openSetting("program");
    } else if (answer === yes) {
      installing ??= installIt().finally(() => (installing = undefined));
      await installing;
    }
  };

  let installing: Promise<void> | undefined;
  const installIt = async (): Promise<void> => {
    try {
      await vscode.window.withProgress(
        { location: vscode.ProgressLocation.Notification, title: "Installing completion-ls" },
        () => install(configured("package", "completion-ls"), context.globalStorageUri, output),
      );
      void start();
    } catch (error) {
      output.show(true);
      void offerSetting((error as Error).message, "package");
    }
  };

  const whether = async (): Promise<void> => {
    const program = await found();
    if (program && (await canStart(program))) {
      void vscode.window.showInformationMessage(`completion-ls is installed: ${program}`);
    } else {
      await start();
    }
  };

  /** Run a command of the program, and show what it prints. Whether it ended well. */
  const print = async (...args: string[]): Promise<boolean> => {
    const program = await found();
    if (!program || !(await canStart(program))) {
      void start(); // says what is missing
      return false;
    }
    output.show(true);
    output.appendLine(`> ${program} ${args.join(" ")}`);
    return new Promise<boolean>((resolve) => {
      execFile(program, args, { env: { ...process.env, COLUMNS: "120" } }, (error, stdout, stderr) => {
        // An exit status has been explained by what was printed.
        const why = typeof error?.code === "string" ? `${error.message}\n` : "";
        output.append(stdout + stderr + why);
        resolve(!error);
      });
    });
  };

  /** A server reads config.toml once, at its start. */
  const init = async (): Promise<void> => {
    if (await print("init")) {
      await start();
    }
  };

  context.subscriptions.push(
    output,
    status,
    provider,
    server,
    vscode.commands.registerCommand(MENU, showMenu),
    vscode.commands.registerCommand("completion-ls.restart", start),
    vscode.commands.registerCommand("completion-ls.doctor", () => print("doctor")),
    vscode.commands.registerCommand("completion-ls.status", () => print("status")),
    vscode.commands.registerCommand("completion-ls.init", init),
    vscode.commands.registerCommand("completion-ls.install", whether),
    vscode.commands.registerCommand("completion-ls.log", () => output.show()),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("completion-ls.program")) {
        void start();
      }
    }),
    // More settings count, and the Python environment.
    vscode.workspace.onDidGrantWorkspaceTrust(start),
  );
  // Not waited for: the editor need not wait for a Python environment to be found.
  void start();
}

export async function deactivate(): Promise<void> {
  const last = server;
  server = undefined; // a start that still looks for the program finds none
  await last?.stop();
}

function configured(key: string, otherwise: string): string {
  const found = vscode.workspace.getConfiguration(SECTION).get<unknown>(key);
  return typeof found === "string" ? found : otherwise; // whatever was written there
}

/** Why there is no program to start, and what to do. */
function missing(named: string | undefined): string {
  return named
    ? `There is no program ${named}, which the setting completion-ls.program names.`
    : 'completion-ls is not installed here; "Restart the server" in the menu of this item offers to install it.';
}

/** Show a message, with a button that opens the setting that it is about. */
async function offerSetting(message: string, key: string): Promise<void> {
  const open = "Open the setting";
  if ((await vscode.window.showErrorMessage(message, open)) === open) {
    await openSetting(key);
  }
}

async function openSetting(key: string): Promise<void> {
  // Of a remote window the user's own settings do not have those of the machine.
  const which = vscode.env.remoteName ? "openRemoteSettings" : "openSettings";
  await vscode.commands.executeCommand(`workbench.action.${which}`, { query: `${SECTION}.${key}` });
}
